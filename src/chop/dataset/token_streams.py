"""Running text as tokens: one long array, cut into rows for next-token prediction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from chop.dataset.arrays import ArrayDataset
from chop.dataset.npz import array_names, check_tokens, read_arrays
from chop.errors import DataError

FILES = {
    "train": ("train.npz", "calibration.npz"),
    "test": ("test.npz", "held.npz"),
    "validation": ("validation.npz",),
}
"""Possible file names of each split."""
IDS = "ids"


def is_token_stream(folder: str | Path) -> bool:
    """Return True if a file of a split in `folder` has exactly one array, `ids`."""
    return any(array_names(file) == [IDS] for file in _files(Path(folder)).values())


def load_token_streams(folder: str | Path, length: int) -> Mapping[str, ArrayDataset]:
    """Return the splits of `folder` as rows of `length` tokens; an incomplete row is dropped."""
    return {split: rows_of(file, length) for split, file in _files(Path(folder)).items()}


def rows_of(file: Path, length: int) -> ArrayDataset:
    """Return the tokens of one file as rows; labels are the tokens themselves."""
    ids = read_arrays(file, [IDS])[IDS]
    check_tokens(ids, f"{file}: {IDS}")
    if ids.ndim != 1:
        raise DataError(f"{file}: {IDS} has shape {list(ids.shape)}. Allowed: one dimension.")
    count = len(ids) // length
    if not count:
        raise DataError(f"{file}: {len(ids)} tokens; a row takes {length} (max_token_len).")
    rows = torch.from_numpy(ids[: count * length].astype(np.int64)).view(count, length)
    return ArrayDataset(
        {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows}
    )


def _files(folder: Path) -> dict[str, Path]:
    paths = {s: [folder / n for n in names if (folder / n).is_file()] for s, names in FILES.items()}
    return {split: files[0] for split, files in paths.items() if files}
