"""K-quants of GGUF: blocks of 256 values whose sub-blocks have scales of 4, 6 or 8 bits.

A sub-block of Q2_K, Q4_K and Q5_K is `d * scale * q - dmin * minimum` with codes q from 0 up. One
of Q3_K and Q6_K is `d * scale * q` with signed q. `d` and `dmin` are float16, one for each block.
All functions work on blocks as rows, of bytes or of float32 values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = Any  # of numpy, whose operators mypy takes for Any
K_BLOCK = 256
AT_ONCE = 2048
"""Blocks that are rounded at a time, so that temporaries stay small."""
OFFSET_STEPS = np.linspace(-1.0, 1.0, 21)
"""Changes of the largest code that the fit of a scale and a minimum tries."""
SIGNED_STEPS = np.linspace(-0.9, 0.9, 19)
"""The same for a scale alone, as in llama.cpp."""


def half(values: Array) -> Array:
    """Return values as float16; those beyond its range are infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(np.float16))


def _wide(data: Array) -> Array:
    """Return float16 numbers from their bytes, as float32."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _shifted(data: Array, shifts: tuple[int, ...], width: int) -> Array:
    """Return fields of `width` bits: all bytes at the first shift, then at the next."""
    by = np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    return (data[:, :, None, :] >> by) & np.uint8(2**width - 1)


def _merged(fields: Array, shifts: tuple[int, ...]) -> Array:
    """Return the bytes whose `_shifted` fields are `fields` of shape (n, parts, shifts, bytes)."""
    by = np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    joined = np.bitwise_or.reduce(fields.astype(np.uint8) << by, axis=2)
    return joined.reshape(len(fields), -1)


TWO_BITS, FOUR_BITS, EIGHT_BITS = (0, 2, 4, 6), (0, 4), tuple(range(8))


class Codes(NamedTuple):
    """Parts of blocks: `d`, `dmin` or None, scales and minimums of sub-blocks, and codes."""

    d: Array
    dmin: Array
    scales: Array
    minimums: Array
    q: Array
    """Codes, (blocks, sub-blocks, values)."""

    def values(self) -> Array:
        """Return the values that the parts stand for."""
        values = (self.d * self.scales)[..., None] * self.q
        if self.dmin is not None:
            values = values - (self.dmin * self.minimums)[..., None]
        return values.astype(np.float32).reshape(len(self.q), K_BLOCK)


# -- bytes and parts -------------------------------------------------------------------------------


def _six_bits(data: Array) -> tuple[Array, Array]:
    """Return 8 scales and 8 minimums of 6 bits from 12 bytes."""
    low, middle, high = (data[:, 4 * i : 4 * i + 4] for i in range(3))
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], 1)
    minimums = np.concatenate([middle & 63, (high >> 4) | ((middle >> 2) & 48)], 1)
    return scales, minimums


def _six_bit_bytes(scales: Array, minimums: Array) -> Array:
    scales, minimums = scales.astype(np.uint8), minimums.astype(np.uint8)
    low = scales[:, :4] | ((scales[:, 4:] & 48) << 2)
    middle = minimums[:, :4] | ((minimums[:, 4:] & 48) << 2)
    high = (scales[:, 4:] & 15) | ((minimums[:, 4:] & 15) << 4)
    return np.concatenate([low, middle, high], 1)


def _floats(codes: Array) -> Array:
    return codes.astype(np.float32)


def _read_q2(data: Array) -> Codes:
    scales, q = data[:, :16], _shifted(data[:, 16:80].reshape(-1, 2, 32), TWO_BITS, 2)
    d, dmin = _wide(data[:, 80:82]), _wide(data[:, 82:84])
    return Codes(
        d, dmin, _floats(scales & 15), _floats(scales >> 4), _floats(q.reshape(-1, 16, 16))
    )


def _write_q2(codes: Codes) -> Array:
    scales = codes.scales.astype(np.uint8) | (codes.minimums.astype(np.uint8) << 4)
    q = _merged(codes.q.reshape(-1, 2, 4, 32), TWO_BITS)
    return np.concatenate([scales, q, half(codes.d).view("u1"), half(codes.dmin).view("u1")], 1)


def _read_q3(data: Array) -> Codes:
    high = _shifted(data[:, :32].reshape(-1, 1, 32), EIGHT_BITS, 1).reshape(-1, 16, 16)
    low = _shifted(data[:, 32:96].reshape(-1, 2, 32), TWO_BITS, 2).reshape(-1, 16, 16)
    near = _shifted(data[:, 96:104].reshape(-1, 1, 8), FOUR_BITS, 4).reshape(-1, 16)
    far = _shifted(data[:, 104:108].reshape(-1, 1, 4), TWO_BITS, 2).reshape(-1, 16)
    scales = _floats(near | (far << 4)) - 32
    return Codes(_wide(data[:, 108:]), None, scales, None, _floats(low | (high << 2)) - 4)


def _write_q3(codes: Codes) -> Array:
    q, scales = (codes.q + 4).astype(np.uint8), (codes.scales + 32).astype(np.uint8)
    high = _merged((q >> 2).reshape(-1, 1, 8, 32), EIGHT_BITS)
    low = _merged((q & 3).reshape(-1, 2, 4, 32), TWO_BITS)
    near = _merged((scales & 15).reshape(-1, 1, 2, 8), FOUR_BITS)
    far = _merged((scales >> 4).reshape(-1, 1, 4, 4), TWO_BITS)
    return np.concatenate([high, low, near, far, half(codes.d).view("u1")], 1)


def _read_q4(data: Array) -> Codes:
    scales, minimums = _six_bits(data[:, 4:16])
    q = _shifted(data[:, 16:].reshape(-1, 4, 32), FOUR_BITS, 4).reshape(-1, 8, 32)
    d, dmin = _wide(data[:, :2]), _wide(data[:, 2:4])
    return Codes(d, dmin, _floats(scales), _floats(minimums), _floats(q))


def _head(codes: Codes) -> Array:
    """Return the 16 bytes before the codes of Q4_K and Q5_K."""
    parts = (half(codes.d).view("u1"), half(codes.dmin).view("u1"))
    return np.concatenate([*parts, _six_bit_bytes(codes.scales, codes.minimums)], 1)


def _write_q4(codes: Codes) -> Array:
    return np.concatenate([_head(codes), _merged(codes.q.reshape(-1, 4, 2, 32), FOUR_BITS)], 1)


def _read_q5(data: Array) -> Codes:
    low = _read_q4(np.concatenate([data[:, :16], data[:, 48:]], 1))
    high = _shifted(data[:, 16:48].reshape(-1, 1, 32), EIGHT_BITS, 1).reshape(-1, 8, 32)
    return low._replace(q=low.q + 16 * _floats(high))


def _write_q5(codes: Codes) -> Array:
    q = codes.q.astype(np.uint8)
    high = _merged((q >> 4).reshape(-1, 1, 8, 32), EIGHT_BITS)
    low = _merged((q & 15).reshape(-1, 4, 2, 32), FOUR_BITS)
    return np.concatenate([_head(codes), high, low], 1)


def _read_q6(data: Array) -> Codes:
    low = _shifted(data[:, :128].reshape(-1, 2, 64), FOUR_BITS, 4).reshape(-1, 16, 16)
    high = _shifted(data[:, 128:192].reshape(-1, 2, 32), TWO_BITS, 2).reshape(-1, 16, 16)
    scales = np.ascontiguousarray(data[:, 192:208]).view(np.int8)
    q = _floats(low | (high << 4)) - 32
    return Codes(_wide(data[:, 208:]), None, _floats(scales), None, q)


def _write_q6(codes: Codes) -> Array:
    q = (codes.q + 32).astype(np.uint8)
    low = _merged((q & 15).reshape(-1, 2, 2, 64), FOUR_BITS)
    high = _merged((q >> 4).reshape(-1, 2, 4, 32), TWO_BITS)
    scales = codes.scales.astype(np.int8).view(np.uint8)
    return np.concatenate([low, high, scales, half(codes.d).view("u1")], 1)


# -- rounding --------------------------------------------------------------------------------------


def _over(a: Array, b: Array) -> Array:
    """Return a / b, 0 where b is 0."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros(a.shape), where=b != 0)


def fitted_offset(x: Array, weights: Array, top: int) -> tuple[Array, Array]:
    """Return scale and minimum of sub-blocks with the least weighted error of several fits.

    Codes are rounded for each range that is tried; scale and minimum are then the least-squares
    solution for these codes. The minimum is not negative: 0 is always in the range.
    """
    low = np.minimum(x.min(-1, keepdims=True), 0)
    width = x.max(-1, keepdims=True).clip(0) - low
    best = (width / top, -low)
    least = np.full(low.shape, np.inf)
    for change in (0.0, *OFFSET_STEPS):
        q = np.rint(_over((top + change) * (x - low), width)).clip(0, top)
        for scale, minimum in (best, _least_squares(x, q, weights)):
            error = (weights * (scale * q - minimum - x) ** 2).sum(-1, keepdims=True)
            better = error < least
            best = (np.where(better, scale, best[0]), np.where(better, minimum, best[1]))
            least = np.minimum(error, least)
    return best[0][..., 0], best[1][..., 0]


def _least_squares(x: Array, q: Array, weights: Array) -> tuple[Array, Array]:
    """Return scale and minimum of the best line through codes and values."""

    def total(values: Array) -> Array:
        return (weights * values).sum(-1, keepdims=True)

    one, qs, qq, xs, qx = total(np.ones_like(x)), total(q), total(q * q), total(x), total(q * x)
    determinant = one * qq - qs * qs
    scale = _over(one * qx - qs * xs, determinant)
    minimum = -_over(qq * xs - qs * qx, determinant)
    is_inside = (minimum >= 0) & (scale > 0)
    return np.where(is_inside, scale, _over(qx, qq).clip(0)), np.where(is_inside, minimum, 0.0)


def fitted_scale(x: Array, weights: Array, top: int) -> Array:
    """Return the scale of sub-blocks, of either sign, with the least weighted error of several."""
    largest = np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)
    best, gain = _over(largest, -float(top)), np.full(largest.shape, -np.inf)
    for change in SIGNED_STEPS:
        q = np.rint(_over(-(top + change) * x, largest)).clip(-top, top - 1)
        product = (weights * x * q).sum(-1, keepdims=True)
        square = (weights * q * q).sum(-1, keepdims=True)
        won = _over(product * product, square)  # the error that this scale removes
        best = np.where(won > gain, _over(product, square), best)
        gain = np.maximum(won, gain)
    return best[..., 0]


def _stored(numbers: Array, limit: int) -> tuple[Array, Array]:
    """Return the float16 unit of numbers from 0 up, and the numbers in it, up to `limit`."""
    unit = half(numbers.max(1, keepdims=True) / limit).astype(np.float64)
    return unit, np.rint(_over(numbers, unit)).clip(0, limit)


def _weights(own: Array, importance: Array | None) -> Array:
    """Return the weights of errors: those of the values times their importance, none of them 0."""
    weights = own if importance is None else own * importance.reshape(own.shape)
    return np.where(weights > 0, weights, np.finfo(np.float32).tiny)


def _round_offset(
    values: Array, importance: Array | None, size: int, top: int, limit: int
) -> Codes:
    x = values.astype(np.float64).reshape(len(values), -1, size)
    own = np.sqrt((x * x).mean(-1, keepdims=True)) + np.abs(x)  # as in llama.cpp
    scales, minimums = fitted_offset(x, _weights(own, importance), top)
    d, scales = _stored(scales, limit)
    dmin, minimums = _stored(minimums, limit)
    moved = x + (dmin * minimums)[..., None]
    q = np.rint(_over(moved, (d * scales)[..., None])).clip(0, top)
    return Codes(d, dmin, scales, minimums, q)


def _round_signed(values: Array, importance: Array | None, top: int, limit: int) -> Codes:
    x = values.astype(np.float64).reshape(len(values), -1, 16)
    scales = fitted_scale(x, _weights(x * x, importance), top)
    largest = np.take_along_axis(scales, np.abs(scales).argmax(1)[:, None], 1)
    d = half(largest / -limit).astype(np.float64)
    scales = np.rint(_over(scales, d)).clip(-limit, limit - 1)
    q = np.rint(_over(x, (d * scales)[..., None])).clip(-top, top - 1)
    return Codes(d, None, scales, None, q)


class KType(NamedTuple):
    """A K-quant: numbers in the file format, bytes of a block, and its functions."""

    name: str
    number: int
    file_type: int
    nbytes: int
    read: Callable[[Array], Codes]
    write: Callable[[Codes], Array]
    round: Callable[[Array, Array | None], Codes]

    def decode(self, data: Array) -> Array:
        """Return the values of blocks."""
        return self.read(data).values()

    def nearest(self, values: Array, importance: Array | None = None) -> Array:
        """Return the bytes of rounded values; `importance` weights their squared errors."""
        results = []
        for start in range(0, len(values), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            own = None if importance is None else importance[part]
            results.append(self.write(self.round(values[part], own)))
        return np.concatenate(results)


K_TYPES = (
    KType("Q2_K", 10, 10, 84, _read_q2, _write_q2, lambda v, w: _round_offset(v, w, 16, 3, 15)),
    KType("Q3_K", 11, 11, 110, _read_q3, _write_q3, lambda v, w: _round_signed(v, w, 4, 32)),
    KType("Q4_K", 12, 14, 144, _read_q4, _write_q4, lambda v, w: _round_offset(v, w, 32, 15, 63)),
    KType("Q5_K", 13, 16, 176, _read_q5, _write_q5, lambda v, w: _round_offset(v, w, 32, 31, 63)),
    KType("Q6_K", 14, 18, 210, _read_q6, _write_q6, lambda v, w: _round_signed(v, w, 32, 128)),
)
