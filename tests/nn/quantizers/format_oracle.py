"""A second definition of the formats, in exact rational arithmetic, one number at a time."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction


def floor_log2(x: Fraction) -> int:
    """The k with 2**k <= x < 2**(k+1)."""
    k = x.numerator.bit_length() - x.denominator.bit_length()
    return k if x >= power(k) else k - 1


def power(k: int) -> Fraction:
    """2**k."""
    return Fraction(2**k) if k >= 0 else Fraction(1, 2**-k)


def float_values(exponent_width: int, mantissa_width: int, bias: int, special: str) -> list[float]:
    """The magnitudes of a float format in order of their codes, read code by code."""
    values = []
    for code in range(2 ** (exponent_width + mantissa_width)):
        field, mantissa = divmod(code, 2**mantissa_width)
        all_ones = field == 2**exponent_width - 1
        if special == "ieee" and all_ones:
            continue
        if special == "fn" and all_ones and mantissa == 2**mantissa_width - 1:
            continue
        significand = Fraction(mantissa, 2**mantissa_width) + (field > 0)
        values.append(power(max(field, 1) - bias) * significand)
    return exactly(values)


def denorm_values(exponent_width: int, mantissa_width: int, bias: int) -> list[float]:
    """The magnitudes of floats without the implicit one."""
    codes = [(e, m) for e in range(2**exponent_width) for m in range(2**mantissa_width)]
    return exactly(sorted({power(e - bias) * Fraction(m, 2**mantissa_width) for e, m in codes}))


def exactly(values: Iterable[Fraction]) -> list[float]:
    """The values as doubles, which hold each of them exactly."""
    doubles = []
    for value in values:
        doubles.append(float(value))
        assert Fraction(doubles[-1]) == value, value
    return doubles


def choose(
    x: Fraction,
    low: Fraction,
    high: Fraction,
    low_is_even: bool,
    rounding: str,
    is_log: bool = False,
) -> Fraction:
    """`low` or `high`, two magnitudes around the magnitude x."""
    middle, place = (low * high, x * x) if is_log else ((low + high) / 2, x)
    if rounding == "toward_zero":
        return low
    if rounding == "away":
        return high if x > low else low
    if place == middle:
        return low if rounding == "nearest_even" and low_is_even else high
    return low if place < middle else high


def round_to(x: float, magnitudes: Sequence[float], rounding: str, is_log: bool = False) -> float:
    """The signed value for x among sign-and-magnitude values in order of their codes; saturates."""
    size = abs(x)
    if rounding == "floor":
        rounding = "away" if x < 0 else "toward_zero"
    at = bisect.bisect_right(magnitudes, size)
    if at == 0:
        found = magnitudes[0]
    elif at == len(magnitudes):
        found = magnitudes[-1]
    else:
        around = Fraction(magnitudes[at - 1]), Fraction(magnitudes[at])
        found = float(choose(Fraction(size), *around, (at - 1) % 2 == 0, rounding, is_log))
    return -found if x < 0 else found


def round_integer(x: Fraction, rounding: str) -> int:
    """x as an integer."""
    if rounding == "floor":
        return math.floor(x)
    if rounding == "toward_zero":
        return math.trunc(x)
    if rounding == "nearest_even":
        return round(x)
    return int(math.copysign(math.floor(abs(x) + Fraction(1, 2)), x))


def fixed(x: float, frac_width: int, low: int, high: int, rounding: str) -> Fraction:
    """Fixed point with integers from low to high; saturates."""
    if math.isinf(x):
        return (high if x > 0 else low) * power(-frac_width)
    q = round_integer(Fraction(x) * power(frac_width), rounding)
    return min(max(q, low), high) * power(-frac_width)


def block_unit(block: Sequence[float], low: int, high: int, zero: int) -> int:
    """The exponent of the largest magnitude within limits; `zero` for a block of zeros."""
    largest = max(abs(Fraction(x)) for x in block)
    return min(max(floor_log2(largest) if largest else zero, low), high)
