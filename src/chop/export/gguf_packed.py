"""Matrices of GGUF files as packed tensors: the same numbers in the layout of the kernels.

To read another type without unpacking it, add a row to `PARTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.errors import ExportError
from chop.export.gguf_file import GGUFFile
from chop.export.gguf_types import BLOCK, E8M0_NAN, TYPES, offset_parts
from chop.files import shown
from chop.kernels.ops import PackedTensor
from chop.kernels.packed_formats import packed_format
from chop.kernels.reference import join_codes, scale_bytes

Array = Any  # of numpy, whose operators mypy takes for Any
Parts = tuple[Array, Array, Array | None]
"""Codes of blocks, their scales, and their offsets or None."""
Arrange = Callable[[Tensor], Tensor]
ELEMENTS_AT_ONCE = 1 << 18
"""Elements that are converted at a time, so that temporaries stay small."""


def _half_scales(data: Array) -> Array:
    return np.ascontiguousarray(data[:, :2]).view(np.float16).astype(np.float32)


def _nibbles(data: Array) -> Array:
    return np.concatenate([data & 15, data >> 4], 1)


def _q8_0(data: Array) -> Parts:
    return data[:, 2:], _half_scales(data), None


def _q4_0(data: Array) -> Parts:
    return (_nibbles(data[:, 2:]) - 8) & 15, _half_scales(data), None


def _q4_1(data: Array) -> Parts:
    codes, steps, offsets = offset_parts(data)
    return codes.view(np.uint8) & 15, steps, offsets


def _mxfp4(data: Array) -> Parts:
    return _nibbles(data[:, 1:]), data[:, :1], None


PARTS: dict[str, tuple[str, Callable[[Array], Parts]]] = {
    "Q8_0": ("int8_group", _q8_0),
    "Q4_0": ("int4", _q4_0),
    "Q4_1": ("int4", _q4_1),
    "MXFP4": ("mxfp4", _mxfp4),
}
"""Type of the file -> packed format, and a function from blocks to the parts of a tensor."""


def packed_tensor(file: GGUFFile, name: str, arrange: Arrange) -> PackedTensor | None:
    """Return the matrix `name` packed, its rows put in order by `arrange`; None for float types."""
    kind, (rows, columns), data = file.tensors[name]
    if kind.name not in PARTS:
        return None
    form, read = PARTS[kind.name]
    whole: list[Tensor | None] = []
    step = max(ELEMENTS_AT_ONCE // columns, 1)
    for first in range(0, rows, step):
        blocks = data.reshape(rows, -1)[first : first + step].reshape(-1, TYPES[kind.name].nbytes)
        parts = read(blocks)
        _check_finite(parts[1:], f"{file.path}: tensor {shown(name)} of {kind.name}")
        stored = _stored(parts, form, min(step, rows - first))
        whole = whole or [part if part is None else _room(part, rows) for part in stored]
        for target, part in zip(whole, stored, strict=True):
            if target is not None and part is not None:
                target[first : first + step] = part
    codes, scales, offsets = (part if part is None else arrange(part) for part in whole)
    assert codes is not None and scales is not None, "a matrix has rows"
    return PackedTensor(codes, scales, form, BLOCK, columns, offsets)


def _check_finite(parts: tuple[Array | None, ...], where: str) -> None:
    """Raise if a scale or an offset is NaN or infinite."""
    for part in parts:
        if part is None:
            continue
        is_finite = np.isfinite(part).all() and not (
            part.dtype == np.uint8 and (part == E8M0_NAN).any()
        )
        if not is_finite:
            raise ExportError(f"{where} has scales that are NaN or infinite.")


def _stored(parts: Parts, form: str, rows: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return codes, scales and offsets of some rows as the kernels store them."""
    row = packed_format(form)
    assert row is not None, f"no packed format '{form}'"
    codes, scales, offsets = (
        part if part is None else torch.from_numpy(np.array(part)).reshape(rows, -1)
        for part in parts
    )
    assert codes is not None and scales is not None, "only offsets may be missing"
    stored = scale_bytes(scales) if row.has_real_scales else scales
    return join_codes(codes, row), stored, offsets


def _room(part: Tensor, rows: int) -> Tensor:
    return part.new_empty(rows, part.shape[1])
