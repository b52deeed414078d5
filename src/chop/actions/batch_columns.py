"""Which column of a dataset feeds which argument of a model."""

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
    """Whether the model's forward has an argument `name`."""
    return name in inspect.signature(model.forward).parameters


def match_columns(model: nn.Module, columns: Iterable[str]) -> dict[str, str]:
    """Column -> argument of the model; columns that it does not take are left out.

    Names decide. Where they match nothing, one column beside the labels feeds the one argument
    that a plain module has.
    """
    given = list(columns)
    label = next((name for name in LABEL_NAMES if name in given), None)
    if label is None:
        raise DataError(f"the dataset has no column of labels ({', '.join(LABEL_NAMES)}): {given}.")
    features = [name for name in given if name not in LABEL_NAMES]
    arguments = _arguments(model)
    matched = {name: name for name in features if name in arguments}
    if not matched and len(features) == len(_required(arguments)) == 1:
        matched = {features[0]: _required(arguments)[0]}
    missing = [name for name in _required(arguments) if name not in matched.values()]
    if not matched or missing:
        raise DataError(
            f"the model takes {', '.join(arguments)}; the dataset has columns {', '.join(given)}."
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
    """Makes a batch of rows: picks and renames columns, and pads where there is a tokenizer."""

    columns: Mapping[str, str]
    tokenizer: Any = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        chosen = [{new: row[old] for old, new in self.columns.items()} for row in rows]
        if self.tokenizer is None:
            return dict(default_data_collator(chosen))
        return dict(DataCollatorWithPadding(self.tokenizer)(chosen))
