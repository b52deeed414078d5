"""Integer arithmetic of the hardware: what `fixed_cast` and `fixed_divide` compute, on NumPy int64.

>>> import numpy as np
>>> round_shift(np.array([1, 3, 5, -1, -3]), 1).tolist()  # 0.5 1.5 2.5 -0.5 -1.5, ties to even
[0, 2, 2, 0, -2]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chop.errors import ConfigError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fixed:
    """Signed fixed point: multiples of 2**-frac_width in `width` bits.

    >>> Fixed(8, 3).encode([0.3, 100.0]).tolist()
    [2, 127]
    """

    width: int
    frac_width: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 32:
            raise ConfigError(f"Fixed: width must lie in 2 … 32, got {self.width}.")
        if not -32 <= self.frac_width <= 32:
            raise ConfigError(f"Fixed: frac_width must lie in -32 … 32, got {self.frac_width}.")

    @property
    def low(self) -> int:
        """Smallest code."""
        return -(1 << (self.width - 1))

    @property
    def high(self) -> int:
        """Largest code."""
        return (1 << (self.width - 1)) - 1

    def encode(self, values: npt.ArrayLike) -> Ints:
        """Codes of the nearest representable numbers, ties to even, saturated."""
        scaled = np.rint(np.asarray(values, dtype=np.float64) * 2.0**self.frac_width)
        return np.clip(scaled, self.low, self.high).astype(np.int64)

    def decode(self, codes: Ints) -> npt.NDArray[np.float64]:
        """The numbers that `codes` stand for."""
        return codes.astype(np.float64) * 2.0**-self.frac_width

    def __str__(self) -> str:
        return f"Q{self.width}.{self.frac_width}"


def round_shift(values: Ints, dropped: int) -> Ints:
    """`values` / 2**dropped, rounded half to even; a negative `dropped` is an exact left shift."""
    if dropped <= 0:
        return values << -dropped
    floor = values >> dropped
    rest = values - (floor << dropped)
    half = 1 << (dropped - 1)
    rounded: Ints = floor + ((rest > half) | ((rest == half) & (floor & 1 == 1)))
    return rounded


def round_divide(values: Ints, divisor: int) -> Ints:
    """`values` / `divisor`, rounded half to even.

    >>> round_divide(np.array([3, 9, 10, -3]), 6).tolist()
    [0, 2, 2, 0]
    """
    floor = values // divisor
    twice_rest = 2 * (values - floor * divisor)
    is_up = (twice_rest > divisor) | ((twice_rest == divisor) & (floor & 1 == 1))
    rounded: Ints = floor + is_up
    return rounded


def cast(values: Ints, frac_width: int, out: Fixed) -> Ints:
    """Codes with `frac_width` fractional bits in the format `out`: round half to even, saturate."""
    rounded = round_shift(values, frac_width - out.frac_width)
    return np.clip(rounded, out.low, out.high)


def divide_cast(values: Ints, frac_width: int, divisor: int, out: Fixed) -> Ints:
    """The exact quotient of codes with `frac_width` fractional bits, cast to `out`."""
    shift = out.frac_width - frac_width
    quotient = round_divide(values << max(shift, 0), divisor << max(-shift, 0))
    return np.clip(quotient, out.low, out.high)
