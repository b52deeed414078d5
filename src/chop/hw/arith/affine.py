"""Straight lines in fixed point: constants whose rounded products are those of the real numbers.

A layer such as batch normalisation gives slope * x + offset with numbers that no fixed-point
format holds. What follows rounds the result, and there are finitely many `x`: constants of a few
bits that round alike for every one of them compute the same function.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints

MOST_BITS = 160
"""Fractional bits of a slope up to which constants are searched."""
ALL_CODES = 4096
"""Number of codes up to which all are tried; of more, those where the result steps."""
MOST_STEPS = 1 << 16
"""Steps of the result up to which constants are searched; more would take minutes."""


class _TooManyStepsError(Exception):
    """The result has more different codes than can be compared."""


@dataclass(frozen=True)
class Line:
    """slope * x + offset; both are binary fractions."""

    slope: Fraction
    offset: Fraction = Fraction(0)


@dataclass(frozen=True, eq=False)
class Constants:
    """slopes * 2**-frac_width and offsets * 2**-offset_frac: one pair for each line."""

    slopes: tuple[int, ...]
    offsets: tuple[int, ...]
    frac_width: int
    offset_frac: int


@functools.lru_cache(maxsize=256)
def fit_lines(
    lines: tuple[Line, ...], data: Fixed, out: Fixed, *, has_offset: bool = True
) -> Constants | None:
    """Return the shortest constants that give every line, cast to `out`, for every code of `data`.

    Without an offset the line is needed below zero alone. Return None if there are no such
    constants, or if the result has more than `MOST_STEPS` different codes.
    """
    high = data.high if has_offset else -1
    try:
        targets = [_Target(line, data.low, high, data.frac_width, out) for line in lines]
    except _TooManyStepsError:
        return None
    first = max(out.frac_width - data.frac_width + 1, 0)  # the product resolves a tie
    for frac_width in range(first, MOST_BITS + 1):
        fits = [fit for target in targets if (fit := target.constants(frac_width)) is not None]
        if len(fits) == len(targets) and (has_offset or all(0 in f.offsets for f in fits)):
            return _constants(fits, frac_width, data.frac_width + frac_width, has_offset)
    return None


@dataclass(frozen=True)
class _Fit:
    """A slope, the offsets that fit it, and the offset nearest to that of the line."""

    slope: int
    offsets: range
    nearest: int

    def has_multiple(self, shift: int) -> bool:
        """Return whether a multiple of 2**shift is among the offsets."""
        return -(-self.offsets.start >> shift) << shift in self.offsets

    def offset(self, shift: int) -> int:
        """Return the nearest multiple of 2**shift among the offsets, in such steps."""
        low, high = -(-self.offsets.start >> shift), (self.offsets.stop - 1) >> shift
        return min(max(self.nearest >> shift, low), high)


def _constants(fits: list[_Fit], frac_width: int, frac: int, has_offset: bool) -> Constants:
    slopes = tuple(f.slope for f in fits)
    if not has_offset:
        return Constants(slopes, (0,) * len(fits), frac_width, frac)
    shift = 0
    while shift < frac and all(f.has_multiple(shift + 1) for f in fits):
        shift += 1
    offsets = tuple(f.offset(shift) for f in fits)
    return Constants(slopes, offsets, frac_width, frac - shift)


class _Target:
    """Output codes of one line, before saturation, at the inputs that matter."""

    def __init__(self, line: Line, low: int, high: int, frac_width: int, out: Fixed) -> None:
        self.line, self.out = line, out
        self.frac_width = frac_width
        self.x = _codes_that_matter(line, low, high, frac_width, out)
        bits = max(_bits(line.slope) + frac_width, _bits(line.offset))
        slope = int(line.slope * (1 << (bits - frac_width))) if bits >= frac_width else 0
        exact = self.x.astype(object) * slope + int(line.offset * (1 << bits))
        codes = golden.round_shift(exact, bits - out.frac_width, out.rounding)
        self.is_open_below = self.is_open_above = np.zeros(len(self.x), dtype=bool)
        if out.overflow == "saturate":
            codes = np.clip(codes, out.low, out.high)
            self.is_open_below, self.is_open_above = codes == out.low, codes == out.high
        self.codes = codes

    def constants(self, frac_width: int) -> _Fit | None:
        """Return a slope of `frac_width` fractional bits with its offsets, or None."""
        slope = round(self.line.slope * (1 << frac_width))
        step = self.frac_width + frac_width - self.out.frac_width  # an output step is 2**step
        bits = (
            max(golden.bits_of(self.codes) + step, golden.bits_of(self.x) + slope.bit_length() + 1)
            + 2
        )
        lows, highs = _rounded_from(golden.wide(self.codes, bits), step, self.out.rounding)
        product = golden.wide(self.x, bits) * slope
        least = (lows - product)[~self.is_open_below]
        most = (highs - product)[~self.is_open_above]
        exact = round(self.line.offset * Fraction(2) ** (self.frac_width + frac_width))
        # where nothing bounds it, up to the line's own offset and zero
        ends = [int(most.min())] if most.size else []
        low = int(least.max()) if least.size else min(exact, 0, *ends)
        high = ends[0] if ends else max(exact, 0, low)
        return _Fit(slope, range(low, high + 1), exact) if low <= high else None


def _bits(number: Fraction) -> int:
    return number.denominator.bit_length() - 1


def _codes_that_matter(line: Line, low: int, high: int, frac_width: int, out: Fixed) -> Ints:
    """Return all codes, or the ends and those around each step of the monotone result."""
    if high - low < ALL_CODES or line.slope == 0:
        return np.arange(low, max(high, low) + 1) if line.slope else np.array([low])
    slope = float(line.slope) * 2.0 ** (out.frac_width - frac_width)
    offset = float(line.offset) * 2.0**out.frac_width
    reached = sorted((slope * low + offset, slope * high + offset))
    first, last = int(np.floor(reached[0])) - 1, int(np.ceil(reached[1])) + 1
    if out.overflow == "saturate":
        first, last = max(first, out.low - 1), min(last, out.high + 1)
    if last < first:
        return np.array([low, high])
    if last - first > MOST_STEPS:
        raise _TooManyStepsError
    halves = np.arange(2 * first, 2 * last + 1) / 2  # steps lie at whole or half codes
    at = np.floor((halves - offset) / slope)
    around = (at[:, None] + np.arange(-1, 3)).clip(low, high).astype(np.int64)
    return np.unique(np.concatenate([[low, high], around.reshape(-1)]))


def _rounded_from(codes: Any, step: int, rounding: str) -> tuple[Any, Any]:
    """Return the range of numbers that round to a code, in parts 2**step of an output step.

    >>> _rounded_from(np.array([1, 2]), 2, "nearest_even")  # above 0.5 below 1.5; from 1.5 to 2.5
    (array([3, 6]), array([ 5, 10]))
    """
    whole, half = codes << step, (1 << step) >> 1
    if rounding == "floor":
        return whole, whole + (1 << step) - 1
    if rounding == "toward_zero":
        below = np.where(codes <= 0, (1 << step) - 1, 0)
        above = np.where(codes >= 0, (1 << step) - 1, 0)
        return whole - below, whole + above
    if rounding == "nearest_away":
        return whole - half + (codes <= 0), whole + half - (codes >= 0)
    is_odd = codes % 2 == 1
    return whole - half + is_odd, whole + half - is_odd
