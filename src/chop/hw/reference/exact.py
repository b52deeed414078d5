"""Arrays of exact rational numbers, for the reference that hardware is checked against.

An array is integers with a common scale: value = codes / (divisor * 2**frac_width). Where a bound
on the magnitudes shows that int64 or float64 is exact it is used, Python's integers otherwise.

>>> x = Exact.of([0.75, -0.3125])
>>> (x.codes.tolist(), x.frac_width)
([12, -5], 4)
>>> str((x / 3).fraction(0))
'1/4'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[Any]
"""int64, or objects that are Python integers."""

SAFE_INT, SAFE_FLOAT = 1 << 62, 1 << 53


def reach(codes: Codes) -> int:
    """Return the largest magnitude among `codes`."""
    return max(abs(int(codes.max())), abs(int(codes.min()))) if codes.size else 0


def fitted(codes: Codes, bound: int) -> Codes:
    """Return `codes` in a type that computes numbers up to `bound` exactly."""
    if bound < SAFE_INT and (codes.dtype != object or reach(codes) < SAFE_INT):
        return codes.astype(np.int64)
    return codes.astype(object)


@dataclass(frozen=True, eq=False)
class Exact:
    """Rational numbers codes / (divisor * 2**frac_width); `divisor` is positive.

    `is_rounded`: in double precision the same computation may have been rounded. `was_rounded`:
    it was so before the numbers were brought to a format.
    """

    codes: Codes
    frac_width: int = 0
    divisor: int = 1
    is_rounded: bool = False
    was_rounded: bool = False

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Exact:
        """Return the exact numbers of doubles."""
        x = np.asarray(values, dtype=np.float64)
        mantissas, exponents = np.frexp(x)
        whole = np.ldexp(mantissas, 53).astype(np.int64)  # x = whole * 2**(exponent - 53)
        lowest = np.where(whole == 0, 1, whole & -whole)
        trailing = np.frexp(lowest.astype(np.float64))[1] - 1
        needed = np.where(whole == 0, -(1 << 20), 53 - exponents - trailing)
        frac_width = max(int(needed.max()), 0) if x.size else 0
        if x.size and float(np.abs(x).max()) * 2.0 ** min(frac_width, 900) < SAFE_INT:
            return cls(np.ldexp(x, frac_width).astype(np.int64), frac_width)
        flat = [int(Fraction(float(v)) * (1 << frac_width)) for v in x.reshape(-1)]
        return cls(np.array(flat, dtype=object).reshape(x.shape), frac_width)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.codes.shape

    def fraction(self, index: int) -> Fraction:
        """Return element `index` of the flat array."""
        return Fraction(int(self.codes.reshape(-1)[index])) / self._unit()

    def _unit(self) -> Fraction:
        return Fraction(self.divisor) * Fraction(2) ** self.frac_width

    def double(self) -> npt.NDArray[np.float64]:
        """Return the nearest doubles."""
        if self.divisor == 1 and reach(self.codes) <= SAFE_FLOAT:
            return np.ldexp(self.codes.astype(np.float64), -self.frac_width)
        unit = self._unit()
        flat = [float(Fraction(int(c)) / unit) for c in self.codes.reshape(-1)]
        return np.array(flat, dtype=np.float64).reshape(self.shape)

    @property
    def is_double(self) -> bool:
        """True if double precision holds every element."""
        return self.divisor == 1 and reach(self.codes) <= SAFE_FLOAT

    def take(self, codes: Codes) -> Exact:
        """Return other integers of the same scale."""
        return Exact(codes, self.frac_width, self.divisor, self.is_rounded)

    def at(self, frac_width: int, divisor: int) -> Codes:
        """Return the integers at a finer scale, a multiple of this one's."""
        factor = divisor // self.divisor << (frac_width - self.frac_width)
        return fitted(self.codes, max(reach(self.codes), 1) * factor) * factor

    def _common(self, other: Exact) -> tuple[int, int]:
        return max(self.frac_width, other.frac_width), math.lcm(self.divisor, other.divisor)

    def __add__(self, other: Exact) -> Exact:
        frac_width, divisor = self._common(other)
        a, b = self.at(frac_width, divisor), other.at(frac_width, divisor)
        bound = reach(a) + reach(b)
        total = fitted(a, bound) + fitted(b, bound)
        return self._combined(total, frac_width, divisor, other)

    def __neg__(self) -> Exact:
        return self.take(-self.codes)

    def __sub__(self, other: Exact) -> Exact:
        return self + -other

    def __mul__(self, other: Exact) -> Exact:
        bound = reach(self.codes) * reach(other.codes)
        product = fitted(self.codes, bound) * fitted(other.codes, bound)
        frac_width = self.frac_width + other.frac_width
        return self._combined(product, frac_width, self.divisor * other.divisor, other)

    def __truediv__(self, number: int) -> Exact:
        """Divide by a positive integer; its powers of two go to the scale."""
        twos = (number & -number).bit_length() - 1
        divided = (self.frac_width + twos, self.divisor * (number >> twos))
        return Exact(self.codes, *divided, self.is_rounded)._reduced()

    def _reduced(self) -> Exact:
        """Divide codes and divisor by their common divisor."""
        common = math.gcd(self.divisor, *(int(c) for c in np.unique(self.codes)))
        if common == 1:
            return self
        return Exact(self.codes // common, self.frac_width, self.divisor // common, self.is_rounded)

    def _combined(self, codes: Codes, frac_width: int, divisor: int, other: Exact) -> Exact:
        is_rounded = self.is_rounded or other.is_rounded
        exact = Exact(codes, frac_width, divisor, is_rounded)
        return exact if exact.is_double else Exact(codes, frac_width, divisor, True)

    def differs(self, other: Exact) -> npt.NDArray[np.bool_]:
        """Return a mask of the elements that are different numbers."""
        frac_width, divisor = self._common(other)
        unlike = self.at(frac_width, divisor) != other.at(frac_width, divisor)
        return np.asarray(unlike, dtype=bool)


def constant(value: float | int) -> Exact:
    """Return one number, which torch computes with in double precision."""
    return Exact.of([float(value)])


def product(x: Exact, weight: Exact) -> Exact:
    """Return x @ weight.T: sums over the last dimensions."""
    rows = np.abs(fitted(weight.codes, reach(weight.codes) * weight.shape[1])).sum(axis=1)
    bound = reach(x.codes) * reach(rows)
    if bound < SAFE_FLOAT:
        sums = (x.codes.astype(np.float64) @ weight.codes.T.astype(np.float64)).astype(np.int64)
    else:
        sums = fitted(x.codes, bound) @ fitted(weight.codes, bound).T
    is_rounded = x.is_rounded or not x.is_double or bound >= SAFE_FLOAT
    frac_width = x.frac_width + weight.frac_width
    return Exact(sums, frac_width, x.divisor * weight.divisor, is_rounded)


Rule = Callable[[Codes, Codes, int], Codes]
ROUND_UP: dict[str, Rule] = {
    "nearest_even": lambda q, twice, d: (twice > d) | ((twice == d) & (q % 2 == 1)),
    "nearest_away": lambda q, twice, d: (twice > d) | ((twice == d) & (q >= 0)),
    "floor": lambda q, twice, d: np.zeros(q.shape, dtype=bool),
    "toward_zero": lambda q, twice, d: (q < 0) & (twice > 0),
}
"""Rounding -> rule to take the integer above, by floor `q`, twice the rest, and divisor `d`."""


def rounded(x: Exact, frac_width: int, rounding: str) -> Codes:
    """Return the integers nearest to x * 2**frac_width by the rule `rounding`."""
    up = max(frac_width - x.frac_width, 0)
    divisor = x.divisor << max(x.frac_width - frac_width, 0)
    bound = (max(reach(x.codes), 1) << up) + 2 * divisor
    codes = fitted(x.codes, bound) << up if bound < SAFE_INT else x.codes.astype(object) * (1 << up)
    floor = codes // divisor
    twice = 2 * (codes - floor * divisor)
    is_up = ROUND_UP[rounding](floor, twice, divisor)
    return np.asarray(floor + is_up.astype(bool).astype(np.int64))


def code_range(width: int, is_signed: bool, narrow: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer of a fixed-point format."""
    if not is_signed:
        return 0, (1 << width) - 1
    high = (1 << (width - 1)) - 1
    return (-high if narrow else -high - 1), high


def quantized(x: Exact, form: Any) -> Exact:
    """Return `x` in a number format, from its fields: rounded, then saturated or wrapped."""
    if hasattr(form, "block_size"):
        return _in_blocks(x, form)
    low, high = code_range(form.width, form.is_signed, form.narrow)
    codes = rounded(x, form.frac_width, form.rounding)
    if form.overflow == "wrap":
        codes = (codes - low) % (1 << form.width) + low
    else:
        codes = np.minimum(np.maximum(codes, low), high)
    whole = np.asarray(codes).astype(np.int64).reshape(x.shape)
    return coded(whole, form.frac_width, was_rounded=x.is_rounded or not x.is_double)


def _in_blocks(x: Exact, form: Any) -> Exact:
    """Return `x` in MXINT: the largest magnitude of a block chooses its power of two.

    Let |x| be from 2**e to 2**(e + 1), with e clipped to the range of the exponent. Then an
    element is a multiple of 2**(e - width + 2), at most 2**(width - 1) - 1 of them.
    """
    exponents = _block_exponents(x, form)
    limit, finest = (1 << (form.width - 1)) - 1, form.width - 2 - int(exponents.min())
    codes = np.zeros(x.shape, dtype=object)
    for e in np.unique(exponents):
        whole = rounded(x, form.width - 2 - int(e), form.rounding).reshape(x.shape)
        clipped = np.minimum(np.maximum(whole, -limit), limit).astype(object)
        here = exponents == e
        codes[here] = clipped[here] * (1 << int(e - exponents.min()))
    scaled = coded(fitted(codes, reach(codes)), finest)
    return Exact(scaled.codes, scaled.frac_width, was_rounded=x.is_rounded or not x.is_double)


def _block_exponents(x: Exact, form: Any) -> Codes:
    """Return the shared exponent of each element."""
    last = np.moveaxis(np.abs(x.codes), form.axis, -1) if len(x.shape) > 1 else np.abs(x.codes)
    rows = np.atleast_2d(last)
    sizes = form.block_size if isinstance(form.block_size, tuple) else (1, form.block_size)
    steps = [n if size == -1 else size for n, size in zip(rows.shape[-2:], sizes, strict=True)]
    largest = rows
    for axis, step in zip((-2, -1), steps, strict=True):
        starts = range(0, rows.shape[axis], step)
        largest = np.maximum.reduceat(largest, list(starts), axis=axis)
        largest = np.repeat(largest, step, axis=axis)
        largest = np.take(largest, range(rows.shape[axis]), axis=axis)
    most = 2 ** (form.exponent_width - 1) - 1
    values, which = np.unique(largest, return_inverse=True)
    places = np.array([_floor_log2(int(m), x, most) for m in values], dtype=np.int64)
    exponents = places[which.reshape(-1)].reshape(last.shape)
    return np.asarray(np.moveaxis(exponents, -1, form.axis) if len(x.shape) > 1 else exponents)


def _floor_log2(code: int, x: Exact, most: int) -> int:
    """Return the largest e in -most … most with 2**e <= code / (divisor * 2**frac_width)."""
    unit = x.divisor << x.frac_width
    e = code.bit_length() - unit.bit_length()  # or one less
    is_above = unit << max(e, 0) > code << max(-e, 0)
    return min(max(e - is_above, -most), most) if code else -most


def coded(codes: Codes, frac_width: int, was_rounded: bool = False) -> Exact:
    """Return codes * 2**-frac_width; the scale of an array has no negative `frac_width`."""
    up = max(-frac_width, 0)
    wide = fitted(codes, max(reach(codes), 1) << up) * (1 << up)
    return Exact(wide, max(frac_width, 0), was_rounded=was_rounded)
