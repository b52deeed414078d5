"""Columns of a dataset as arguments of a model."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import DataCollatorWithPadding, default_data_collator

from chop.dataset.row_selection import LABEL_NAMES
from chop.errors import DataError

LABELS = "labels"


def takes(model: nn.Module, name: str) -> bool:
    """Return True if the model's forward has an argument `name`."""
    return name in inspect.signature(model.forward).parameters


def column_names(split: Any) -> list[str]:
    """Return the names of the columns of a split."""
    return list(split.column_names) if hasattr(split, "column_names") else list(split[0])


def match_columns(model: nn.Module, columns: Iterable[str]) -> dict[str, str]:
    """Return the argument of the model for each column that has one.

    Names decide. If none matches, a single column besides the labels feeds the single argument of
    a plain module.
    """
    names = list(columns)
    label = next((name for name in LABEL_NAMES if name in names), None)
    if label is None:
        raise DataError(f"the dataset has no column of labels ({', '.join(LABEL_NAMES)}): {names}.")
    features = [name for name in names if name not in LABEL_NAMES]
    arguments = _arguments(model)
    matched = {name: name for name in features if name in arguments}
    if not matched and len(features) == len(_required(arguments)) == 1:
        matched = {features[0]: _required(arguments)[0]}
    missing = [name for name in _required(arguments) if name not in matched.values()]
    if not matched or missing:
        raise DataError(
            f"the model takes {', '.join(arguments)}; the dataset has columns {', '.join(names)}."
        )
    return {**matched, label: LABELS}


def _arguments(model: nn.Module) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(model.forward).parameters
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {n: p for n, p in parameters.items() if p.kind in named and n not in LABEL_NAMES}


def _required(arguments: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in arguments.items() if p.default is inspect.Parameter.empty]


@dataclass(frozen=True)
class Collate:
    """Function that makes a batch of rows: it selects and renames columns, and pads text.

    `length`: tokens of every row; None pads to the longest row of the batch.
    """

    columns: Mapping[str, str]
    tokenizer: Any = None
    length: int | None = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        chosen = [{new: row[old] for old, new in self.columns.items()} for row in rows]
        if self.tokenizer is None:
            return dict(default_data_collator(chosen))
        padding = True if self.length is None else "max_length"
        pad = DataCollatorWithPadding(self.tokenizer, padding, self.length)
        return dict(pad(chosen))
