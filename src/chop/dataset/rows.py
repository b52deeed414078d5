"""Which rows of a split are used: drawn by a seed, each class in its share.

A split that is sorted by label has only one class among its first rows, so the first rows of a
split never stand for the whole of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LABEL_NAMES = ("labels", "label", "label_ids")
"""What a column of labels is called."""
MOST_CLASSES = 1000
"""A column of more different values is not taken for classes."""
HELD_OUT_SEED = 0
"""The rows held out for choosing are the same for every command, whatever its seed: a model must
never have been trained on the rows by which it is chosen."""


def draw_rows(split: Any, count: int, seed: int) -> Any:
    """`count` rows of `split` in random order, each class in its share; all where it has fewer."""
    rows = draw_indices(labels_of(split), len(split), count, seed)
    return split.select(rows)


def hold_out(split: Any, share: float) -> tuple[Any, Any]:
    """`split` without `share` of its rows, and these rows; the same ones each time."""
    count = round(share * len(split))
    held = sorted(draw_indices(labels_of(split), len(split), count, HELD_OUT_SEED))
    kept = np.setdiff1d(np.arange(len(split)), held).tolist()
    return split.select(kept), split.select(held)


def draw_indices(
    labels: Sequence[Any] | np.ndarray | None, length: int, count: int, seed: int
) -> list[int]:
    """The places of `count` rows out of `length`, in random order; `labels` give the classes.

    >>> sorted(draw_indices([0, 0, 0, 0, 1, 1], 6, 3, seed=1))
    [0, 2, 4]
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(length)
    if count >= length:
        return [int(i) for i in order]
    classes = _classes(labels)
    if classes is None:
        return [int(i) for i in order[:count]]
    chosen = np.concatenate(
        [order[classes[order] == c][:n] for c, n in enumerate(_shares(classes, count))]
    )
    return [int(i) for i in generator.permutation(chosen)]


def _classes(labels: Sequence[Any] | np.ndarray | None) -> np.ndarray | None:
    """The class of each row as a number from 0; None where rows have no class."""
    values = np.asarray([] if labels is None else labels)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "biuUS":
        return None
    kinds, classes = np.unique(values, return_inverse=True)
    return classes if len(kinds) <= MOST_CLASSES else None


def _shares(classes: np.ndarray, count: int) -> list[int]:
    """How many of `count` rows each class gets: its share, rounded so that the sum is right."""
    exact = np.bincount(classes) * count / len(classes)
    whole = np.floor(exact).astype(int)
    largest_rests = np.argsort(whole - exact, kind="stable")
    whole[largest_rests[: count - int(whole.sum())]] += 1
    return [int(n) for n in whole]


def labels_of(split: Any) -> Any:
    """The labels of a split, None where it has none or rows of its own make."""
    columns = getattr(split, "columns", None)
    if isinstance(columns, Mapping):
        name = next((n for n in LABEL_NAMES if n in columns), None)
        return None if name is None else np.asarray(columns[name])
    if hasattr(split, "labels"):
        return split.labels
    names = getattr(split, "column_names", ())
    name = next((n for n in LABEL_NAMES if n in names), None)
    if name is None or not hasattr(split, "select"):
        return None
    is_list = hasattr(getattr(split, "features", {}).get(name), "feature")
    return None if is_list else split[name]  # the tokens of running text are no classes
