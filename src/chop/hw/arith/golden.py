"""Integer arithmetic of the hardware: what `fixed_cast` and `fixed_divide` compute.

Codes are NumPy int64; what would not fit is computed with Python's integers, so nothing wraps.

>>> import numpy as np
>>> round_shift(np.array([1, 3, 5, -1, -3]), 1).tolist()  # 0.5 1.5 2.5 -0.5 -1.5, ties to even
[0, 2, 2, 0, -2]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from chop.errors import ConfigError
from chop.nn.quantizers.integer import Integer

Ints = npt.NDArray[np.int64]
MAX_WIDTH = 62
"""Bits of the widest element on a wire; its codes are int64."""
FRAC_WIDTHS = range(-256, 513)

Rounding = Literal["nearest_even", "floor", "toward_zero", "nearest_away"]
Overflow = Literal["saturate", "wrap"]
ROUNDINGS: tuple[Rounding, ...] = ("nearest_even", "floor", "toward_zero", "nearest_away")
"""Roundings of `fixed_cast`, at the value of its parameter ROUNDING."""


@dataclass(frozen=True)
class Fixed:
    """Fixed point: multiples of 2**-frac_width in `width` bits, with rounding and overflow.

    >>> Fixed(8, 3).encode([0.3, 100.0]).tolist()
    [2, 127]
    >>> Fixed(8, 3, is_signed=False, rounding="floor").encode([0.3, -1.0]).tolist()
    [2, 0]

    The fields are those of the number format `Integer`.
    """

    width: int
    frac_width: int = 0
    is_signed: bool = True
    narrow: bool = False
    overflow: Overflow = "saturate"
    rounding: Rounding = "nearest_even"

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_WIDTH:
            raise ConfigError(f"Fixed: width must lie in 1 … {MAX_WIDTH}, got {self.width}.")
        if self.frac_width not in FRAC_WIDTHS:
            ends = f"{FRAC_WIDTHS[0]} … {FRAC_WIDTHS[-1]}"
            raise ConfigError(f"Fixed: frac_width must lie in {ends}, got {self.frac_width}.")
        if self.rounding not in ROUNDINGS:
            allowed = ", ".join(ROUNDINGS)
            raise ConfigError(f"Fixed: rounding must be one of {allowed}, got {self.rounding}.")

    @classmethod
    def of(cls, number: Integer) -> Fixed:
        """Return the hardware format of the number format `Integer`."""
        kinds = (number.is_signed, number.narrow, number.overflow, number.rounding)
        return cls(number.width, number.frac_width, *kinds)  # type: ignore[arg-type]

    @property
    def low(self) -> int:
        """Smallest code."""
        return -(1 << (self.width - 1)) + self.narrow if self.is_signed else 0

    @property
    def high(self) -> int:
        """Largest code."""
        return (1 << (self.width - self.is_signed)) - 1

    @property
    def signed_width(self) -> int:
        """Bits of a signed number that holds every code."""
        return self.width + (not self.is_signed)

    @property
    def lane_width(self) -> int:
        """Bits of one element on a wire."""
        return self.width

    @property
    def shared_width(self) -> int:
        """Bits of a beat besides its elements."""
        return 0

    def to_wire(self, codes: Ints, lanes: int) -> tuple[Ints, Ints | None]:
        """Return the elements of each beat, and the bits that they share."""
        return codes.reshape(-1, lanes), None

    def from_wire(self, elements: Ints, shared: Ints | None) -> Ints:
        """Return the codes of the elements of beats: the inverse of `to_wire`."""
        return elements

    def holds(self, other: Fixed) -> bool:
        """Return whether every code of `other` is a code of this format for the same number."""
        same = (type(self), self.width, self.frac_width, self.is_signed)
        is_laid_out = same == (type(other), other.width, other.frac_width, other.is_signed)
        return is_laid_out and self.low <= other.low and other.high <= self.high

    def encode(self, values: npt.ArrayLike) -> Ints:
        """Return the codes of numbers, rounded and brought into the range."""
        scaled = np.ldexp(np.asarray(values, dtype=np.float64), self.frac_width)
        if self.overflow == "wrap":
            scaled = np.fmod(scaled, 2.0**self.width)  # exact, and rounding does not see periods
        whole = np.clip(_WHOLE[self.rounding](scaled), -(2.0**MAX_WIDTH), 2.0**MAX_WIDTH)
        return self.fit(whole.astype(np.int64))

    def fit(self, codes: Any) -> Ints:
        """Return whole codes brought into the range: saturated, or modulo 2**width."""
        if self.overflow == "wrap":
            codes = ((codes - self.low) & ((1 << self.width) - 1)) + self.low
        fitted: Ints = np.clip(codes, self.low, self.high).astype(np.int64)
        return fitted

    def decode(self, codes: Ints) -> npt.NDArray[np.float64]:
        """Return the numbers of `codes`."""
        return np.ldexp(codes.astype(np.float64), -self.frac_width)

    def __str__(self) -> str:
        sign = "Q" if self.is_signed else "UQ"
        how: list[str] = [self.rounding] * (self.rounding != "nearest_even")
        how += ["narrow"] * self.narrow + [self.overflow] * (self.overflow != "saturate")
        return " ".join([f"{sign}{self.width}.{self.frac_width}", *how])


class Span(NamedTuple):
    """Range of the codes of an exact result, `low` to `high`, and their fractional bits."""

    low: int
    high: int
    frac_width: int

    @property
    def width(self) -> int:
        """Bits of a signed number that holds them all."""
        ends = (self.high if self.high >= 0 else -self.high - 1, -self.low - 1)
        return max(end.bit_length() for end in ends if end >= 0) + 1

    @property
    def format(self) -> Fixed:
        """The narrowest signed format with all of them.

        >>> str(Span(-129, 5, 4).format)
        'Q9.4'
        """
        return Fixed(self.width, self.frac_width)


def span(number: Fixed) -> Span:
    """Return the range of all codes of a format."""
    return Span(number.low, number.high, number.frac_width)


def _away(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    whole: npt.NDArray[np.float64] = np.trunc(x)
    return whole + np.copysign(np.abs(x - whole) >= 0.5, x)


_WHOLE: dict[str, Any] = {
    "nearest_even": np.rint,
    "floor": np.floor,
    "toward_zero": np.trunc,
    "nearest_away": _away,
}


def wide(values: Ints, bits: int) -> Any:
    """Return `values`, as Python's integers if results of `bits` bits do not fit an int64."""
    return values.astype(object) if bits > MAX_WIDTH + 1 else values


def bits_of(values: Any) -> int:
    """Return the bits of the largest magnitude among `values`, with a sign."""
    if not values.size:
        return 1
    return max(int(values.max()).bit_length(), int(values.min()).bit_length()) + 1


def round_shift(values: Ints, dropped: int, rounding: Rounding = "nearest_even") -> Any:
    """Return `values` / 2**dropped, rounded; a negative `dropped` is an exact left shift."""
    if dropped <= 0:
        return wide(values, bits_of(values) - dropped) << -dropped
    exact = wide(values, max(bits_of(values), dropped) + 2)
    floor = exact >> dropped
    return _round(floor, exact - (floor << dropped), 1 << dropped, exact < 0, rounding)


def round_divide(values: Ints, divisor: int, rounding: Rounding = "nearest_even") -> Any:
    """Return `values` / `divisor`, rounded.

    >>> round_divide(np.array([3, 9, 10, -3]), 6).tolist()
    [0, 2, 2, 0]
    >>> round_divide(np.array([3, 9, 10, -3]), 6, "floor").tolist()
    [0, 1, 1, -1]
    """
    exact = wide(values, max(bits_of(values), divisor.bit_length()) + 2)
    floor = exact // divisor
    return _round(floor, exact - floor * divisor, divisor, exact < 0, rounding)


def _round(floor: Any, rest: Any, divisor: int, is_negative: Any, rounding: Rounding) -> Any:
    """Return the quotient with a remainder of `rest`: its floor, or the next integer."""
    if rounding == "floor":
        return floor
    if rounding == "toward_zero":
        return floor + (is_negative & (rest != 0))
    ties_up = floor % 2 == 1 if rounding == "nearest_even" else ~is_negative.astype(bool)
    return floor + ((2 * rest > divisor) | ((2 * rest == divisor) & ties_up))


def cast(values: Ints, frac_width: int, out: Fixed) -> Ints:
    """Return codes with `frac_width` fractional bits in the format `out`."""
    return out.fit(round_shift(values, frac_width - out.frac_width, out.rounding))


def divide_cast(values: Ints, frac_width: int, divisor: int, out: Fixed) -> Ints:
    """Return the exact quotient of codes with `frac_width` fractional bits, cast to `out`."""
    shift = out.frac_width - frac_width
    dividend = wide(values, bits_of(values) + max(shift, 0)) << max(shift, 0)
    return out.fit(round_divide(dividend, divisor << max(-shift, 0), out.rounding))
