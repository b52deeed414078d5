"""The dataset of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from chop.actions.batch_columns import LABELS, Collate, column_names, match_columns
from chop.actions.language import LANGUAGE_METRICS
from chop.cli.failures import UsageError
from chop.cli.named_objects import thing_of
from chop.cli.shared_options import DataOptions, ModelOptions
from chop.dataset import DATASETS, get_dataset, get_tokenized_dataset
from chop.dataset.row_selection import draw_rows, hold_out
from chop.dataset.running_text import load_running_text
from chop.dataset.token_streams import is_token_stream, load_token_streams
from chop.dataset.tokenized import load_tokenizer
from chop.ir.graph import MaseGraph
from chop.registry import suggest

SPLITS = {"train": "train_rows", "test": "test_rows", "validation": "test_rows"}
"""Split -> option that limits its rows."""
TRAIN, TEST, VALIDATION = SPLITS
LONGEST = 512
"""Default number of tokens per row."""


@dataclass(frozen=True)
class Data:
    """Splits of rows, and the tokenizer that pads rows of text."""

    splits: Mapping[str, Any]
    tokenizer: Any = None

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return column_names(self.splits[TRAIN])

    @property
    def test(self) -> Any:
        """Rows for evaluation."""
        return self.splits[TEST] if TEST in self.splits else self.splits[VALIDATION]

    def few(self, graph: MaseGraph) -> Data:
        """Return the same data with only the first test rows, to check that evaluation works.

        These are two rows, or as many as a graph for one number of rows takes.
        """
        rows = self.pinned_rows(graph) or 2
        indices, test = range(min(rows, len(self.test))), self.test
        some = test.select(indices) if hasattr(test, "select") else [test[i] for i in indices]
        return Data({**self.splits, TEST: some}, self.tokenizer)

    def pinned_rows(self, graph: MaseGraph) -> int:
        """Return the number of rows of every batch of a graph for one size; 0 if any will do."""
        return max(_pinned_rows(graph), default=0)

    def for_choosing(self) -> Data:
        """Return the data with the validation rows as test rows, to choose among models.

        The real test rows are for the model that was chosen.
        """
        if VALIDATION not in self.splits:
            raise UsageError(
                f"the dataset has no split '{VALIDATION}' to choose by, and --validation-share is "
                f"0. Give a share above 0; splits: {', '.join(self.splits)}."
            )
        return Data({TRAIN: self.splits[TRAIN], TEST: self.splits[VALIDATION]}, self.tokenizer)

    def batches(self, model: nn.Module, rows: int, most: int) -> list[dict[str, Any]]:
        """Return training rows as arguments of `model`, in batches, labels included."""
        collate, train = self._collate(model), self.splits[TRAIN]
        starts = range(0, min(rows * most, len(train)), rows)
        return [collate([train[i] for i in range(s, min(s + rows, len(train)))]) for s in starts]

    def labelled_test_rows(self, model: nn.Module, most: int) -> dict[str, Any]:
        """Return the first test rows as arguments of `model`, labels included."""
        return self._collate(model)([self.test[i] for i in range(min(most, len(self.test)))])

    def test_rows(self, model: nn.Module, most: int) -> dict[str, Any]:
        """Return the first test rows as arguments of `model`, without labels."""
        rows = self.labelled_test_rows(model, most)
        return {name: value for name, value in rows.items() if name != LABELS}

    def _collate(self, model: nn.Module) -> Collate:
        return Collate(match_columns(model, self.columns), self.tokenizer)

    def example(self, model: nn.Module, rows: int = 2) -> dict[str, Any]:
        """Return a few training rows as arguments of `model`, without labels."""
        return {k: v for k, v in self.batches(model, rows, 1)[0].items() if k != LABELS}


def load_data(options: DataOptions, model_place: str | None) -> Data | None:
    """Return the dataset of `options`, or None."""
    if options.dataset is None:
        return None

    def choose(splits: Mapping[str, Any]) -> dict[str, Any]:
        return choose_rows(splits, options)

    if thing_of(options.dataset) is not None:
        return Data(choose(_checked_splits(thing_of(options.dataset))))
    if options.dataset in DATASETS:
        return Data(choose(get_dataset(options.dataset)))
    length = options.max_token_len or LONGEST
    if is_token_stream(options.dataset):
        return Data(choose(load_token_streams(options.dataset, length)))
    tokenizer_place = options.tokenizer or model_place
    is_trusted = isinstance(options, ModelOptions) and options.trust_remote_code
    if options.metric in LANGUAGE_METRICS:
        tokenizer = None
        if tokenizer_place is not None:
            tokenizer = load_tokenizer(tokenizer_place, trust_remote_code=is_trusted)
        return Data(choose(load_running_text(options.dataset, tokenizer, length)))
    if tokenizer_place is None:
        raise UsageError(
            f"no dataset '{options.dataset}' without text. {suggest(options.dataset, DATASETS)} "
            "For text, give --tokenizer, a hub name or a folder."
        )
    splits, tokenizer = get_tokenized_dataset(
        options.dataset,
        tokenizer_place,
        return_tokenizer=True,
        max_token_len=length,
        choose=choose,
        trust_remote_code=is_trusted,
    )
    return Data(splits, tokenizer)


def _checked_splits(splits: Any) -> Mapping[str, Any]:
    is_whole = (
        isinstance(splits, Mapping) and TRAIN in splits and splits.keys() & {TEST, VALIDATION}
    )
    if is_whole and all(hasattr(split, "select") for split in splits.values()):
        return dict(splits)
    names = ", ".join(map(str, splits)) if isinstance(splits, Mapping) else type(splits).__name__
    raise UsageError(
        f"dataset: got {names}; expected a name, a path, or a mapping with the splits '{TRAIN}' "
        f"and '{TEST}', each a dataset with `select`."
    )


def require_data(options: DataOptions, model_place: str | None, purpose: str) -> Data:
    """Return the dataset of `options`, which must name one."""
    data = load_data(options, model_place)
    if data is None:
        names = ", ".join(DATASETS)
        raise UsageError(f"{purpose} needs --dataset: {names}, a hub name, a file or a folder.")
    return data


def choose_rows(splits: Mapping[str, Any], options: DataOptions) -> dict[str, Any]:
    """Return the splits with the rows that `options` select.

    If there is no validation split, a share of the training rows becomes one.
    """
    chosen = {name: splits[name] for name in SPLITS if name in splits}
    if VALIDATION not in chosen and TEST in chosen and TRAIN in chosen and options.validation_share:
        chosen[TRAIN], chosen[VALIDATION] = hold_out(chosen[TRAIN], options.validation_share)
    limits = {name: getattr(options, SPLITS[name]) for name in chosen}
    return {
        name: split if limits[name] is None else draw_rows(split, limits[name], options.data_seed)
        for name, split in chosen.items()
    }


def _pinned_rows(graph: MaseGraph) -> list[int]:
    """Return the number of rows of each input whose first size is pinned."""
    captured = graph.dummy_in or {}
    table = graph.open_sizes().items()
    pinned = [name for name, kinds in table if kinds[:1] == ["pinned"] and name in captured]
    return [len(captured[name]) for name in pinned]
