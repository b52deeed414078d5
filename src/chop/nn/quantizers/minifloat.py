"""Grids of floating-point values, and rounding to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from chop.nn.quantizers.code_values import float_table
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.powers import LAYOUTS, all_ones, floor_log2, power_of_two, times_power
from chop.nn.quantizers.quantizer import RoundingQuantizer, check, check_between
from chop.nn.quantizers.rounding import Rounding, round_to_multiple

Special = Literal["ieee", "fn", "fnuz", "none"]
FLOAT32_LIMIT = torch.finfo(torch.float32).max
FLOAT32_TINY = 2.0 ** LAYOUTS[torch.float32].min_exponent


@dataclass(frozen=True)
class FloatGrid:
    """Signed floats of `exponent_width` and `mantissa_width` bits with subnormals.

    `special` names the codes that are no numbers: "ieee" the top exponent (Inf and NaN), "fn" all
    ones (NaN), "fnuz" negative zero (NaN), "none" no code.
    """

    exponent_width: int
    mantissa_width: int
    bias: int
    special: Special

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest value."""
        loses_top = self.special == "ieee" or (self.special == "fn" and self.mantissa_width == 0)
        return int(2**self.exponent_width - 1 - self.bias - loses_top)

    def limit(self, dtype: torch.dtype = torch.float64) -> float:
        """Return the largest value that `dtype` holds."""
        if self.max_exponent < self.min_exponent:  # one exponent, and it is taken: subnormals only
            return float(all_ones(self.mantissa_width, dtype)) * self.tiny
        significand = all_ones(self.mantissa_width + 1, dtype)
        if self.special == "fn" and 0 < self.mantissa_width < LAYOUTS[dtype].precision:
            significand -= 1
        return math.ldexp(significand, self.max_exponent - self.mantissa_width)

    @property
    def tiny(self) -> float:
        """Smallest positive value."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_width)

    def check(self) -> None:
        """Raise if float32 cannot hold the grid."""
        check_between("exponent_width", self.exponent_width, 1, 8)
        check(self.mantissa_width >= 0, "width must be at least exponent_width + 1.")
        check_float32(self.limit(), self.tiny, self.bias)
        only_zero = f"exponent_width 1 with special = '{self.special}' leaves no value but zero."
        check(self.limit() > 0, only_zero)

    def values(self) -> Tensor:
        """Return all finite values in order, zero once."""
        steps = torch.arange(2**self.mantissa_width, dtype=torch.float64)
        fields = range(1, 2**self.exponent_width)
        normal = [(steps + 2**self.mantissa_width) * 2.0 ** (field - 1) for field in fields]
        positive = torch.cat([steps, *normal]) * self.tiny
        positive = positive[positive <= self.limit()]
        return torch.cat([-positive.flip(0)[:-1], positive])


FLOAT_ELEMENTS = {
    "e4m3": FloatGrid(4, 3, 7, "fn"),
    "e5m2": FloatGrid(5, 2, 15, "ieee"),
    "e3m2": FloatGrid(3, 2, 3, "none"),
    "e2m3": FloatGrid(2, 3, 1, "none"),
    "e2m1": FloatGrid(2, 1, 1, "none"),
}
"""Element formats of the Open Compute Project (FP8 and microscaling)."""


def element_from_widths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with `exponent_width` and `frac_width` replaced by the element's name."""
    named = dict(settings)
    exponent_width, frac_width = named.pop("exponent_width", None), named.pop("frac_width", None)
    if exponent_width is not None or frac_width is not None:
        named.setdefault("element", f"e{exponent_width}m{frac_width}")
    return named


def check_float32(largest: float, smallest: float, bias: int) -> None:
    """Raise if float32 cannot hold the largest or the smallest positive value."""
    fits = largest <= FLOAT32_LIMIT * (1 + 2.0**-24) and smallest >= FLOAT32_TINY
    values = f"largest {largest:.4g}, smallest {smallest:.4g}"
    check(fits, f"exponent_bias {bias} gives values that float32 cannot hold ({values}).")


def float_kernel(
    mantissa_width: int, exponents: tuple[int, int], limit: float, beyond: float
) -> tuple[str, tuple[float, ...]]:
    """Return name and parameters of the native code; `exponents` are those of normal values."""
    low, high = exponents
    is_moderate = low - mantissa_width >= -126 and high <= 100 and mantissa_width <= 21
    if is_moderate and beyond == limit:
        return "float", (mantissa_width, low, limit)
    return "wide_float", (mantissa_width, low, limit, beyond)


def bias_or_default(bias: int | None, exponent_width: int, special: Special = "none") -> int:
    """Return `bias` if given, else the one that centres the exponents, one more for "fnuz"."""
    centre = 2 ** (exponent_width - 1) - 1 + (special == "fnuz")
    return int(centre) if bias is None else bias


def round_to_float(
    x: Tensor,
    mantissa_width: int,
    min_exponent: Tensor | int,
    rounding: Rounding,
    noise: Tensor | None = None,
) -> Tensor:
    """Round `x` to `mantissa_width` bits after the leading one, fewer below 2**min_exponent.

    A carry into the next binade, also from the subnormals to the normals, needs no extra step.
    """
    exponent = floor_log2(x).clamp(min=min_exponent)
    y = round_to_multiple(x, exponent - mantissa_width, rounding, noise)
    if mantissa_width == 0 and rounding == "nearest_even":
        y = _tie_to_even_exponent(x, y, exponent, min_exponent)
    return y


def _tie_to_even_exponent(
    x: Tensor, y: Tensor, exponent: Tensor, min_exponent: Tensor | int
) -> Tensor:
    # Without mantissa bits the last bit of the code is the last bit of the exponent field.
    is_tie = times_power(x.abs(), -exponent) == 1.5
    field_is_even = (exponent - min_exponent) % 2 == 1
    lower = torch.copysign(power_of_two(exponent, x.dtype), x)
    return torch.where(is_tie & field_is_even, lower, y)


@dataclass(frozen=True)
class GridQuantizer(RoundingQuantizer):
    """A format whose values are a `FloatGrid`."""

    maps_elements = True

    @property
    def grid(self) -> FloatGrid:
        """Values of this format."""
        raise NotImplementedError

    @property
    def overflows_to_special(self) -> bool:
        """True if a value beyond the largest becomes Inf or NaN instead of the largest."""
        return False

    @property
    def bits(self) -> float:
        return 1.0 + self.grid.exponent_width + self.grid.mantissa_width

    @property
    def range(self) -> tuple[float, float]:
        return -self.grid.limit(), self.grid.limit()

    def values_by_code(self) -> Tensor:
        return float_table(self.grid)

    def value_set(self) -> Tensor | None:
        return self.grid.values() if self.bits <= 8 else None

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        grid, noise = self.grid, self.noise_for(x, noise)
        y = round_to_float(x, grid.mantissa_width, grid.min_exponent, self.rounding, noise)
        limit = grid.limit(x.dtype)
        beyond = torch.copysign(y.new_full((), self._beyond(limit)), y)
        y = torch.where(y.abs() > limit, beyond, y)
        return torch.where(y == 0, 0.0, y) if grid.special == "fnuz" else y

    def _beyond(self, limit: float) -> float:
        """Return the replacement of a magnitude above the limit."""
        if not self.overflows_to_special:
            return limit
        return math.inf if self.grid.special == "ieee" else math.nan

    def kernel(self) -> Kernel | None:
        grid, limit = self.grid, self.grid.limit(torch.float32)
        if grid.special == "fnuz" or grid.mantissa_width == 0 or grid.min_exponent < -126:
            return None
        exponents = (grid.min_exponent, grid.max_exponent)
        rows = float_kernel(grid.mantissa_width, exponents, limit, self._beyond(limit))
        return self.rounded_kernel(*rows)
