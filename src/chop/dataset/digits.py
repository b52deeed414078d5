"""Handwritten digits, 8 x 8 grey pixels, from scikit-learn."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from chop.arguments import WHOLE, check
from chop.dataset.arrays import ArrayDataset
from chop.dataset.built_in import DATASETS
from chop.errors import DataError, MissingDependencyError

BRIGHTEST = 16.0  # largest pixel of scikit-learn's images


@DATASETS.entry("digits")
def digits(test_size: int = 360, seed: int = 0) -> dict[str, ArrayDataset]:
    """Return 1797 digits: `pixel_values` of shape [1, 8, 8] in [0, 1], `labels` from 0 to 9."""
    images, labels = _read()
    check("digits: seed", WHOLE, seed, DataError)
    count = len(labels)
    if not isinstance(test_size, int) or not 0 < test_size < count:
        raise DataError(f"digits: test_size is {test_size!r}. Allowed: 1 to {count - 1} rows.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    pixels = images[order, None] / BRIGHTEST
    whole = ArrayDataset({"pixel_values": pixels, "labels": labels[order]})
    first = len(whole) - test_size
    return {"train": whole.select(range(first)), "test": whole.select(range(first, len(whole)))}


@functools.cache  # reading the text of scikit-learn's file takes a quarter of a second
def _read() -> tuple[Tensor, Tensor]:
    """Return all images and their labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            "digits: scikit-learn is not installed. Install it: pip install 'masegraph[train]'."
        ) from error
    raw = load_digits()
    return torch.tensor(raw.images, dtype=torch.float32), torch.tensor(raw.target)
