"""Types of tensors in GGUF files: blocks of 32 or 256 values along a row, and plain floats.

To add a type, add a row to `TYPES` with its number in the file format, its bytes and its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chop.errors import ConfigError, ExportError
from chop.export.gguf_k_types import K_BLOCK, K_TYPES, Array
from chop.export.gguf_k_types import half as _half
from chop.nn.quantizers import MXFP, parse_format
from chop.nn.quantizers.bits import unpack_bits
from chop.nn.quantizers.codes import Powers, encode
from chop.registry import suggest

BLOCK = 32
Exact = Callable[[Array, Array], Array]
E8M0_NAN = 255
"""Code of a shared exponent that means NaN."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclass(frozen=True)
class GGUFType:
    """Type of tensors; all functions work on blocks as rows.

    `exact(values, steps)` returns the bytes of values that the type stores exactly, or None.
    `nearest(values)` returns the bytes of the rounded values, `decode(data)` the values. A K-quant
    takes the importance of values too: `nearest(values, importance)`.
    """

    name: str
    number: int
    file_type: int
    block: int
    nbytes: int
    exact: Exact
    nearest: Callable[..., Array]
    decode: Callable[[Array], Array]

    @property
    def has_importance(self) -> bool:
        """True if `nearest` takes the importance of values."""
        return self.block == K_BLOCK

    def size(self, elements: int) -> int:
        """Return the bytes of `elements` values."""
        return elements // self.block * self.nbytes


def _exact_half(values: Array, steps: Array | None) -> Array | None:
    half = _half(values)
    return half.view(np.uint8) if np.array_equal(half.astype(np.float32), values) else None


def _bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _from_bfloat16(data: Array) -> Array:
    return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _exact_bfloat16(values: Array, steps: Array | None) -> Array | None:
    data = _bfloat16(values).view(np.uint8)
    return data if np.array_equal(_from_bfloat16(data), values) else None


def _scale_and(scale: Array, *parts: Array) -> Array:
    return np.concatenate([_half(scale).view(np.uint8), *parts], 1)


def _scales(data: Array, column: int = 0) -> Array:
    pair = np.ascontiguousarray(data[:, 2 * column : 2 * column + 2])
    return pair.view(np.float16).astype(np.float32)


def _half_bytes(codes: Array) -> Array:
    """Pack 4-bit codes: the first half of a block is in the low halves of the bytes."""
    low, high = codes[:, : BLOCK // 2], codes[:, BLOCK // 2 :]
    return (low | (high << 4)).astype(np.uint8)


def _four_bits(data: Array) -> Array:
    return np.concatenate([data & 15, data >> 4], 1)


def _integers(values: Array, steps: Array | None) -> tuple[Array, Array] | None:
    """Return values as integers and a float16 step per block; None if they have none."""
    if steps is None:
        return None
    is_zero = ~values.any(1, keepdims=True)
    steps = np.where(is_zero, np.float32(0), steps)  # any step holds zeros
    step = steps[:, :1]
    if not (steps == step).all() or _exact_half(step, None) is None:
        return None
    whole = np.rint(_quotient(values, step))
    return (whole.astype(np.int64), step) if np.array_equal(whole * step, values) else None


def _quotient(values: Array, step: Array) -> Array:
    """Return `values` over `step`, 0 where the step is 0."""
    return np.divide(values, step, out=np.zeros_like(values), where=step != 0)


def _exact_integers(low: int, high: int, pack: Callable[[Array], Array]) -> Exact:
    def exact(values: Array, steps: Array | None) -> Array | None:
        integers = _integers(values, steps)
        if integers is None or integers[0].min() < low or integers[0].max() > high:
            return None
        return _scale_and(integers[1], pack(integers[0]))

    return exact


def _pack_8(whole: Array) -> Array:
    return whole.astype(np.int8).view(np.uint8)


def _pack_4(whole: Array) -> Array:
    return _half_bytes((whole + 8).astype(np.uint8))


def _rounded(values: Array, scale: Array, low: int, high: int) -> tuple[Array, Array]:
    """Return the stored scale, and the nearest integers with it."""
    stored = _half(scale).astype(np.float32)
    whole = np.rint(_quotient(values, stored))
    return stored, np.clip(whole, low, high).astype(np.int64)


def _nearest_8(values: Array) -> Array:
    scale, whole = _rounded(values, np.abs(values).max(1, keepdims=True) / 127, -127, 127)
    return _scale_and(scale, _pack_8(whole))


def _nearest_4(values: Array) -> Array:
    """Round to -8 … 7 steps, with the sign of the scale such that the largest magnitude is -8."""
    largest = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    scale, whole = _rounded(values, largest / -8, -8, 7)
    return _scale_and(scale, _pack_4(whole))


def _exact_offset(values: Array, steps: Array | None) -> Array | None:
    integers = _integers(values, steps)
    if integers is None:
        return None
    whole, step = integers
    first = whole.min(1, keepdims=True)
    offset = (first * step).astype(np.float32)
    if (whole - first).max() > 15 or _exact_half(offset, None) is None:
        return None
    packed = _half_bytes((whole - first).astype(np.uint8))
    data = _scale_and(step, _half(offset).view(np.uint8), packed)
    return data if np.array_equal(_decode_offset(data), values) else None


ZERO_CODE = 8
"""Code of Q4_1 that stands for 0 times the step in a packed layer, whose codes are -8 … 7."""


def offset_bytes(values: Array, step: Array, offsets: Array) -> Array | None:
    """Return the Q4_1 bytes of codes -8 … 7 times `step` plus `offsets`; None if they have none.

    The offset of the file is that of code -8. Values may differ by a rounding of float32.
    """
    offset = offsets[:, :1]
    whole = np.rint(_quotient(values - offset, step)) + ZERO_CODE
    if whole.min() < 0 or whole.max() > 15 or _exact_half(step, None) is None:
        return None
    lowest = _half(offset - ZERO_CODE * step).view(np.uint8)
    data = _scale_and(step, lowest, _half_bytes(whole.astype(np.uint8)))
    bound = 2.0**-22 * np.maximum(np.abs(offset), np.abs(values))
    return data if (np.abs(_decode_offset(data) - values) <= bound).all() else None


def offset_parts(data: Array) -> tuple[Array, Array, Array]:
    """Return the codes -8 … 7, the steps and the offsets of Q4_1 blocks, one block per row."""
    step = _scales(data)
    return (
        _four_bits(data[:, 4:]).astype(np.int8) - ZERO_CODE,
        step,
        _scales(data, 1) + ZERO_CODE * step,
    )


def _nearest_offset(values: Array) -> Array:
    low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
    offset = _half(low).astype(np.float32)
    scale, whole = _rounded(values - offset, (high - offset) / 15, 0, 15)
    return _scale_and(scale, _half(offset).view(np.uint8), _half_bytes(whole.astype(np.uint8)))


def _decode_offset(data: Array) -> Array:
    return _four_bits(data[:, 4:]).astype(np.float32) * _scales(data) + _scales(data, 1)


def _exact_mxfp4(values: Array, steps: Array | None) -> Array | None:
    coded = encode(torch.from_numpy(np.ascontiguousarray(values)), MXFP("e2m1", block_size=BLOCK))
    if coded is None or not isinstance(coded.scale, Powers):
        return None
    codes = unpack_bits(coded.codes, 4, values.size).numpy().reshape(values.shape)
    scales = coded.scale.codes.numpy().reshape(-1, 1)  # 2**(byte - 127)
    return np.concatenate([scales, _half_bytes(codes)], 1)


def _nearest_mxfp4(values: Array) -> Array:
    form = MXFP("e2m1", block_size=BLOCK)
    data = _exact_mxfp4(form.quantize(torch.from_numpy(values)).numpy(), None)
    assert data is not None, "values of the format have codes"
    return data


def _decode_mxfp4(data: Array) -> Array:
    codes = _four_bits(data[:, 1:])
    magnitude = np.ldexp(E2M1[codes & 7], data[:, :1].astype(np.int32) - 127)
    signed = np.where(codes > 7, -magnitude, magnitude)
    return np.where(data[:, :1] == E8M0_NAN, np.float32(np.nan), signed)


def _never_exact(values: Array, steps: Array | None) -> Array | None:
    """Return None: scales of scales hold no format of layers exactly."""
    return None


def _single(values: Array) -> Array:
    return np.ascontiguousarray(values.astype(np.float32)).view(np.uint8)


def _floats(data: Array, dtype: Any) -> Array:
    return np.ascontiguousarray(data).view(dtype).astype(np.float32, copy=False)


_ROWS: tuple[tuple[Any, ...], ...] = (
    ("F32", 0, 0, 1, 4, lambda v, _: _single(v), _single, lambda d: _floats(d, np.float32)),
    (
        *("F16", 1, 1, 1, 2, _exact_half, lambda v: _half(v).view(np.uint8)),
        lambda d: _floats(d, np.float16),
    ),
    (
        *("BF16", 30, 32, 1, 2, _exact_bfloat16, lambda v: _bfloat16(v).view(np.uint8)),
        _from_bfloat16,
    ),
    (
        *("Q4_0", 2, 2, BLOCK, 18, _exact_integers(-8, 7, _pack_4), _nearest_4),
        lambda d: (_four_bits(d[:, 2:]).astype(np.float32) - 8) * _scales(d),
    ),
    ("Q4_1", 3, 3, BLOCK, 20, _exact_offset, _nearest_offset, _decode_offset),
    (
        *("Q8_0", 8, 7, BLOCK, 34, _exact_integers(-128, 127, _pack_8), _nearest_8),
        lambda d: _floats(d[:, 2:], np.int8) * _scales(d),
    ),
    ("MXFP4", 39, 38, BLOCK, 17, _exact_mxfp4, _nearest_mxfp4, _decode_mxfp4),
    *(
        (k.name, k.number, k.file_type, K_BLOCK, k.nbytes, _never_exact, k.nearest, k.decode)
        for k in K_TYPES
    ),
)
TYPES = {row[0]: GGUFType(*row) for row in _ROWS}
BY_NUMBER = {row.number: row for row in TYPES.values()}
SMALLEST_FIRST = tuple(sorted(TYPES, key=lambda name: TYPES[name].nbytes / TYPES[name].block))
BLOCK_TYPES = tuple(name for name in SMALLEST_FIRST if TYPES[name].block > 1)
FLOAT_TYPES = tuple(name for name in SMALLEST_FIRST if TYPES[name].block == 1)


def type_named(text: str, where: str) -> str:
    """Return the type named `text`, or the type of the format that `text` spells."""
    if text in TYPES:
        return text
    try:
        kind = parse_format(text).gguf_type
    except ConfigError as error:
        raise ExportError(f"{where}: unknown format '{text}'. {suggest(text, TYPES)}") from error
    if kind is None:
        raise ExportError(f"{where}: GGUF has no type for '{text}'. {suggest(text, TYPES)}")
    return kind


def blocks_of(values: Array, kind: GGUFType) -> Array | None:
    """Return the rows of a matrix as blocks; None if they do not divide."""
    if kind.block == 1:
        return values.reshape(1, -1)
    return values.reshape(-1, kind.block) if values.shape[-1] % kind.block == 0 else None
