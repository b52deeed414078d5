"""Powers of two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.powers import floor_log2, power_of_two, times_power
from chop.nn.quantizers.quantizer import RoundingQuantizer, check, check_between
from chop.nn.quantizers.rounding import Rounding
from chop.nn.quantizers.spelling import number_stem

Domain = Literal["log", "linear"]
BELOW_SQRT_TWO = 1.4142135623730949
"""Last double below sqrt(2); as a float32 it is the last float32 below sqrt(2)."""
SQRT_TWO_FRACTION = 0x3504F4
"""First float32 fraction, in units of 2**-23, of a mantissa above sqrt(2)."""
FIRST_UP = {
    "log": (SQRT_TWO_FRACTION, SQRT_TWO_FRACTION),
    "linear": (2**22, 2**22),
    "toward_zero": (2**23, 2**23),
    "floor": (2**23, 1),
}
"""First fraction that rounds up in magnitude, for positive and for negative values."""
NORMAL_EXPONENTS = (-126, 127)  # of float32


@dataclass(frozen=True)
class LogRounding(RoundingQuantizer):
    """Rounding of a magnitude to a power of two, shared by the log formats.

    With `domain = "log"` the nearest power is nearest in the exponent: the threshold between
    2**k and 2**(k+1) is sqrt(2) * 2**k. With "linear" it is nearest in value: 1.5 * 2**k.
    Stochastic rounding keeps the mean of the value. There is no code for zero, and 0 becomes the
    smallest positive value, unless `zero_code` spends the lowest exponent on zero.
    """

    domain: Domain = field(default="log", kw_only=True)
    zero_code: bool = field(default=False, kw_only=True)

    def carries(self) -> tuple[float, float, float] | None:
        """Return the native code's carries for positive and negative values, and `zero_code`."""
        key = self.domain if self.rounding in ("nearest_even", "nearest_away") else self.rounding
        if (self.rounding, self.domain) == ("nearest_even", "linear") or key not in FIRST_UP:
            return None
        positive, negative = (2**23 - fraction for fraction in FIRST_UP[key])
        return positive, negative, float(self.zero_code)

    def powers(
        self, x: Tensor, low: Tensor | int, high: Tensor | int, noise: Tensor | None
    ) -> Tensor:
        """Return `x` as signed powers of two with exponents from `low` to `high`."""
        exponent = round_log2(x, low, self.rounding, self.domain, noise)
        exponent = exponent.clamp(min=low).clamp(max=high)
        sign = torch.where(x == 0, 1.0, x)
        y = torch.copysign(power_of_two(exponent, x.dtype), sign)
        if self.zero_code:
            y = torch.where(exponent == low, 0.0, y)
        return torch.where(x.isnan(), x, y)


def round_log2(
    x: Tensor, low: Tensor | int, rounding: Rounding, domain: Domain, noise: Tensor | None
) -> Tensor:
    """Round log2|x| to an integer; exponent `low` has code 0, which decides linear ties."""
    exponent = floor_log2(x)
    mantissa = times_power(x.abs(), -exponent)
    if rounding == "toward_zero":
        return exponent
    if rounding == "floor":  # of the value, so negative ones grow in magnitude
        up = (x < 0) & (mantissa > 1)
    elif rounding == "stochastic":
        assert noise is not None, "stochastic rounding needs its noise"
        up = (mantissa - 1) >= 1 - noise
    elif domain == "log":  # sqrt(2) is irrational: there are no ties
        up = mantissa > BELOW_SQRT_TWO
    else:
        code_is_odd = (exponent - low) % 2 == 1
        up = (mantissa > 1.5) | ((mantissa == 1.5) & (code_is_odd | (rounding == "nearest_away")))
    return exponent + up.to(exponent.dtype)


@dataclass(frozen=True)
class Log(LogRounding):
    """Signed powers of two: 1 sign and `width` - 1 exponent bits.

    >>> Log(4).quantize(torch.tensor([0.30, -1.4, 1.5, 0.0])).tolist()
    [0.25, -1.0, 2.0, 0.125]

    Exponents run from -exponent_bias, by default 1 - 2**(width-2), over 2**(width-1) values. Those
    below -126 are not used with `domain = "log"`: the smallest magnitude is then 2**-126.
    """

    name, class_suffix = "log", "Log"
    maps_elements = True
    stem = number_stem("log")
    search_settings: ClassVar = {"width": [6, 8], "exponent_bias": [7, 15, 31]}

    width: int
    exponent_bias: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 2, 9)
        low, high = self._coded_exponents
        lowest = high if self.domain == "log" else low  # else `low` decides which way ties go
        fits = lowest >= NORMAL_EXPONENTS[0] and high <= NORMAL_EXPONENTS[1]
        check(fits, f"exponents {low} to {high} must lie within -126 to 127; set exponent_bias.")

    @property
    def _coded_exponents(self) -> tuple[int, int]:
        bias = 2 ** (self.width - 2) - 1 if self.exponent_bias is None else self.exponent_bias
        return -bias, 2 ** (self.width - 1) - 1 - bias

    @property
    def exponents(self) -> tuple[int, int]:
        """Smallest and largest exponent."""
        low, high = self._coded_exponents
        return max(low, NORMAL_EXPONENTS[0]), high

    @property
    def bits(self) -> float:
        return float(self.width)

    @property
    def range(self) -> tuple[float, float]:
        limit = 2.0 ** self.exponents[1]
        return -limit, limit

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return self.powers(x, *self.exponents, self.noise_for(x, noise))

    def kernel(self) -> Kernel | None:
        carries = self.carries()
        return carries and self.rounded_kernel("log", (*carries, *self.exponents))

    def value_set(self) -> Tensor | None:
        if self.width > 8:
            return None
        low, high = self.exponents
        positive = 2.0 ** torch.arange(low, high + 1, dtype=torch.float64)
        if self.zero_code:
            positive[0] = 0.0
        return torch.cat([-positive, positive]).unique()
