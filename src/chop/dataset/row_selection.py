"""Random selection of rows by a seed, with the class shares of the whole split.

The first rows would not do: a split may be sorted by label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LABEL_NAMES = ("labels", "label", "label_ids")
"""Names of a column of labels."""
IGNORED = -100
"""Label of positions that are not predicted, such as padding and context."""
MOST_CLASSES = 1000
"""Most distinct values of a column of classes."""
HELD_OUT_SEED = 0
"""Seed of held-out rows, the same for every command: models must not train on these rows."""


def draw_rows(split: Any, count: int, seed: int) -> Any:
    """Return `count` random rows of `split` with its class shares; all if it has fewer."""
    return split.select(draw_indices(labels_of(split), len(split), count, seed))


def hold_out(split: Any, share: float) -> tuple[Any, Any]:
    """Return `split` without `share` of its rows, and these rows; the same ones each time."""
    count = round(share * len(split))
    held_out = sorted(draw_indices(labels_of(split), len(split), count, HELD_OUT_SEED))
    others = np.setdiff1d(np.arange(len(split)), held_out).tolist()
    return split.select(others), split.select(held_out)


def draw_indices(
    labels: Sequence[Any] | np.ndarray | None, length: int, count: int, seed: int
) -> list[int]:
    """Return the indices of `count` rows out of `length`, in random order; `labels` are classes.

    >>> sorted(draw_indices([0, 0, 0, 0, 1, 1], 6, 3, seed=1))
    [0, 2, 4]
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(length)
    classes = _classes(labels)
    if count >= length or classes is None:
        return [int(i) for i in order[:count]]
    exact = np.bincount(classes) * count / len(classes)
    shares = np.floor(exact).astype(int)
    largest_rests = np.argsort(shares - exact, kind="stable")
    shares[largest_rests[: count - int(shares.sum())]] += 1
    rows = np.concatenate([order[classes[order] == c][:n] for c, n in enumerate(shares)])
    return [int(i) for i in generator.permutation(rows)]


def _classes(labels: Sequence[Any] | np.ndarray | None) -> np.ndarray | None:
    """Return the class of each row as a number from 0, None if rows have no class."""
    values = np.asarray([] if labels is None else labels)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "biuUS":
        return None
    kinds, classes = np.unique(values, return_inverse=True)
    return classes if len(kinds) <= MOST_CLASSES else None


def labels_of(split: Any) -> Any:
    """Return the labels of a split, None if it has none."""
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
    return None if is_list else split[name][:]  # the tokens of running text are no classes
