"""Fingerprints of models and datasets: short texts that depend on contents, not on paths.

A record on disk is valid for a model and rows with the same fingerprints; a file at the same path
may have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from chop.ir.graph_fingerprint import LENGTH as LENGTH
from chop.ir.graph_fingerprint import graph_fingerprint as graph_fingerprint

ROWS_AT_A_TIME = 8192
"""Rows of an Arrow table that are hashed together."""


def data_fingerprint(splits: Mapping[str, Any]) -> str:
    """Return the fingerprint of the rows of every split, in order."""
    digest = hashlib.sha256()
    for name in sorted(splits):
        digest.update(f"split {name}:{len(splits[name])}".encode())
        for piece in _pieces(splits[name]):
            digest.update(piece)
    return digest.hexdigest()[:LENGTH]


def _pieces(split: Any) -> Iterator[Any]:
    """Yield the contents of a split as bytes."""
    columns = getattr(split, "columns", None)
    if isinstance(columns, Mapping):
        arrays = {name: np.asarray(column) for name, column in columns.items()}
    elif hasattr(split, "offsets"):
        arrays = {name: getattr(split, name) for name in ("ids", "offsets", "labels")}
    elif hasattr(split, "with_format"):
        for table in split.with_format("arrow").iter(ROWS_AT_A_TIME):
            for name in table.column_names:
                yield name.encode()
                yield from (bytes(part) for part in _canonical(table[name].combine_chunks()))
        return
    else:
        yield from (repr(split[i]).encode() for i in range(len(split)))
        return
    for name, array in arrays.items():
        yield f"{name}:{array.dtype}:{array.shape}".encode()
        yield np.ascontiguousarray(array).view(np.uint8)


def _canonical(array: Any) -> Iterator[Any]:
    """Yield the values of an Arrow array, independent of its buffers."""
    if hasattr(array, "offsets"):  # a list for each row
        yield np.diff(array.offsets.to_numpy())
        yield from _canonical(array.flatten())
    elif array.type.num_buffers == 2 and not array.null_count:
        yield array.to_numpy(zero_copy_only=False).tobytes()
    else:
        yield repr(array.to_pylist()).encode()
