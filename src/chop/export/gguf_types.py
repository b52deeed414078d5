"""The types of tensors in GGUF files: blocks of 32 values along a row, and plain floats.

Add a type: a row in `TYPES` with its number in the file format, its bytes and its three functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chop.errors import ConfigError, ExportError
from chop.nn.quantizers import MXFP, parse_format
from chop.nn.quantizers.bits import unpack_bits
from chop.nn.quantizers.codes import Powers, encode
from chop.registry import suggest

BLOCK = 32
Array = Any  # of numpy, whose operators mypy takes for Any
Exact = Callable[[Array, Array], Array]
E8M0_NAN = 255
"""The code of a shared exponent that is no number."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclass(frozen=True)
class GGUFType:
    """`exact(values, steps)` are the bytes of values that the type holds, else None; `nearest`
    rounds to it; `decode` gives the values. All take and give blocks as rows.
    """

    name: str
    number: int
    file_type: int
    block: int
    nbytes: int
    exact: Exact
    nearest: Callable[[Array], Array]
    decode: Callable[[Array], Array]

    def size(self, elements: int) -> int:
        """Bytes that `elements` values take."""
        return elements // self.block * self.nbytes


# -- floats ----------------------------------------------------------------------------------


def _bytes(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8)


def _exact_half(values: Array, steps: Array | None) -> Array | None:
    half = _half(values)
    return half.view(np.uint8) if np.array_equal(half.astype(np.float32), values) else None


def _half(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(np.float16))


def _bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _from_bfloat16(data: Array) -> Array:
    return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _exact_bfloat16(values: Array, steps: Array | None) -> Array | None:
    made = _bfloat16(values).view(np.uint8)
    return made if np.array_equal(_from_bfloat16(made), values) else None


# -- integers with a scale -------------------------------------------------------------------


def _scale_and(scale: Array, *parts: Array) -> Array:
    return np.concatenate([_half(scale).view(np.uint8), *parts], 1)


def _scales(data: Array, column: int = 0) -> Array:
    pair = np.ascontiguousarray(data[:, 2 * column : 2 * column + 2])
    return pair.view(np.float16).astype(np.float32)


def _half_bytes(codes: Array) -> Array:
    """Codes of 4 bits: those of the first half of a block are the low halves of the bytes."""
    low, high = codes[:, : BLOCK // 2], codes[:, BLOCK // 2 :]
    return (low | (high << 4)).astype(np.uint8)


def _four_bits(data: Array) -> Array:
    return np.concatenate([data & 15, data >> 4], 1)


def _integers(values: Array, steps: Array | None) -> tuple[Array, Array] | None:
    """Values as integers and a step that all of a block share and float16 holds; None if not."""
    if steps is None:
        return None
    step = steps[:, :1]
    if not (steps == step).all() or _exact_half(step, None) is None:
        return None
    whole = np.rint(_quotient(values, step))
    return (whole.astype(np.int64), step) if np.array_equal(whole * step, values) else None


def _quotient(values: Array, step: Array) -> Array:
    """`values` over `step`, 0 where the step is 0."""
    return np.divide(values, step, out=np.zeros_like(values), where=step != 0)


def _exact_integers(low: int, high: int, pack: Callable[[Array], Array]) -> Exact:
    def exact(values: Array, steps: Array | None) -> Array | None:
        found = _integers(values, steps)
        if found is None or found[0].min() < low or found[0].max() > high:
            return None
        return _scale_and(found[1], pack(found[0]))

    return exact


def _pack_8(whole: Array) -> Array:
    return whole.astype(np.int8).view(np.uint8)


def _pack_4(whole: Array) -> Array:
    return _half_bytes((whole + 8).astype(np.uint8))


def _rounded(values: Array, scale: Array, low: int, high: int) -> tuple[Array, Array]:
    """The scale as it is stored, and the nearest integers at it."""
    stored = _half(scale).astype(np.float32)
    whole = np.rint(_quotient(values, stored))
    return stored, np.clip(whole, low, high).astype(np.int64)


def _nearest_8(values: Array) -> Array:
    scale, whole = _rounded(values, np.abs(values).max(1, keepdims=True) / 127, -127, 127)
    return _scale_and(scale, _pack_8(whole))


def _nearest_4(values: Array) -> Array:
    """-8 … 7 steps: the end with one more value is given to the largest magnitude."""
    largest = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    scale, whole = _rounded(values, largest / -8, -8, 7)
    return _scale_and(scale, _pack_4(whole))


def _decode_8(data: Array) -> Array:
    return np.ascontiguousarray(data[:, 2:]).view(np.int8).astype(np.float32) * _scales(data)


def _decode_4(data: Array) -> Array:
    return (_four_bits(data[:, 2:]).astype(np.float32) - 8) * _scales(data)


# -- integers with a scale and an offset -----------------------------------------------------


def _exact_offset(values: Array, steps: Array | None) -> Array | None:
    found = _integers(values, steps)
    if found is None:
        return None
    whole, step = found
    first = whole.min(1, keepdims=True)
    offset = (first * step).astype(np.float32)
    if (whole - first).max() > 15 or _exact_half(offset, None) is None:
        return None
    packed = _half_bytes((whole - first).astype(np.uint8))
    made = _scale_and(step, _half(offset).view(np.uint8), packed)
    return made if np.array_equal(_decode_offset(made), values) else None


def _nearest_offset(values: Array) -> Array:
    low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
    offset = _half(low).astype(np.float32)
    scale, whole = _rounded(values - offset, (high - offset) / 15, 0, 15)
    return _scale_and(scale, _half(offset).view(np.uint8), _half_bytes(whole.astype(np.uint8)))


def _decode_offset(data: Array) -> Array:
    return _four_bits(data[:, 4:]).astype(np.float32) * _scales(data) + _scales(data, 1)


# -- small floats with a power of two --------------------------------------------------------


def _exact_mxfp4(values: Array, steps: Array | None) -> Array | None:
    coded = encode(torch.from_numpy(np.ascontiguousarray(values)), MXFP("e2m1", block_size=BLOCK))
    if coded is None or not isinstance(coded.scale, Powers):
        return None
    codes = unpack_bits(coded.codes, 4, values.size).numpy().reshape(values.shape)
    scales = coded.scale.codes.numpy().reshape(-1, 1)  # 2**(byte - 127)
    return np.concatenate([scales, _half_bytes(codes)], 1)


def _nearest_mxfp4(values: Array) -> Array:
    form = MXFP("e2m1", block_size=BLOCK)
    made = _exact_mxfp4(form.quantize(torch.from_numpy(values)).numpy(), None)
    assert made is not None, "values of the format have codes"
    return made


def _decode_mxfp4(data: Array) -> Array:
    codes = _four_bits(data[:, 1:])
    magnitude = np.ldexp(E2M1[codes & 7], data[:, :1].astype(np.int32) - 127)
    signed = np.where(codes > 7, -magnitude, magnitude)
    return np.where(data[:, :1] == E8M0_NAN, np.float32(np.nan), signed)


def _single(values: Array) -> Array:
    return _bytes(values.astype(np.float32))


_PLAIN = ("F32", 0, 0, 1, 4, lambda v, s: _single(v), _single)
TYPES = {
    row.name: row
    for row in (
        GGUFType(*_PLAIN, lambda data: np.ascontiguousarray(data).view(np.float32)),
        GGUFType(
            *("F16", 1, 1, 1, 2, _exact_half, lambda v: _half(v).view(np.uint8)),
            lambda data: np.ascontiguousarray(data).view(np.float16).astype(np.float32),
        ),
        GGUFType(
            *("BF16", 30, 32, 1, 2, _exact_bfloat16, lambda v: _bfloat16(v).view(np.uint8)),
            _from_bfloat16,
        ),
        GGUFType(
            *("Q4_0", 2, 2, BLOCK, 18, _exact_integers(-8, 7, _pack_4), _nearest_4), _decode_4
        ),
        GGUFType("Q4_1", 3, 3, BLOCK, 20, _exact_offset, _nearest_offset, _decode_offset),
        GGUFType(
            *("Q8_0", 8, 7, BLOCK, 34, _exact_integers(-128, 127, _pack_8), _nearest_8), _decode_8
        ),
        GGUFType("MXFP4", 39, 38, BLOCK, 17, _exact_mxfp4, _nearest_mxfp4, _decode_mxfp4),
    )
}
BY_NUMBER = {row.number: row for row in TYPES.values()}
SMALLEST_FIRST = tuple(sorted(TYPES, key=lambda name: TYPES[name].nbytes / TYPES[name].block))
BLOCK_TYPES = tuple(name for name in SMALLEST_FIRST if TYPES[name].block > 1)
FLOAT_TYPES = tuple(name for name in SMALLEST_FIRST if TYPES[name].block == 1)


def type_named(text: str, where: str) -> str:
    """Return the type that `text` names: its own name, or the spelling of a format it holds."""
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
    """The rows of a matrix as blocks; None where they do not divide."""
    if kind.block == 1:
        return values.reshape(1, -1)
    return values.reshape(-1, kind.block) if values.shape[-1] % kind.block == 0 else None
