"""Fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from chop.nn.quantizers.code_values import onnx_integer, whole_values
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.powers import all_ones
from chop.nn.quantizers.quantizer import EVERYWHERE, RoundingQuantizer, check, check_between
from chop.nn.quantizers.rounding import round_to_multiple
from chop.nn.quantizers.spelling import Stem, read_sign

WIDEST_WRAP = 24  # float32 holds every integer of this many bits


@dataclass(frozen=True)
class Integer(RoundingQuantizer):
    """Fixed point: multiples of 2**-frac_width in `width` bits, two's complement if signed.

    >>> Integer(8, 4).quantize(torch.tensor([0.30, 100.0, -100.0])).tolist()
    [0.3125, 7.9375, -8.0]

    `frac_width` may be negative or exceed `width`. `narrow` leaves out the lowest value, so that
    the range is symmetric. On overflow the value saturates, or wraps modulo 2**width as hardware
    accumulators do. Zero has no sign. NaN stays NaN.
    """

    name, class_suffix = "integer", "Integer"
    maps_elements = True
    aliases = ("fixed",)
    stem = Stem(
        "[u]fixed<width>[.<frac_width>]",
        "fixed8.4",
        r"(?P<u>u)?fixed(?P<width>\d{1,4})(\.(?P<frac_width>-?\d{1,4}))?",
        lambda q: (
            "u" * (not q.is_signed) + f"fixed{q.width}" + f".{q.frac_width}" * bool(q.frac_width)
        ),
        read_sign,
    )
    wire = "fixed"
    search_settings: ClassVar = {"width": [8, 16, 32], "frac_width": [2, 4, 8]}

    width: int
    frac_width: int = 0
    is_signed: bool = True
    narrow: bool = False
    overflow: Literal["saturate", "wrap"] = "saturate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 1, 32)
        check_between("frac_width", self.frac_width, -90, 126)
        check(self.is_signed or not self.narrow, "narrow needs is_signed = true.")
        check(not self.narrow or self.width > 1, "narrow needs a width of at least 2, got 1.")
        wraps = self.overflow == "wrap"
        check(not (wraps and self.narrow), "overflow = 'wrap' and narrow exclude each other.")
        if wraps:
            check_between("width with overflow = 'wrap'", self.width, 1, WIDEST_WRAP)

    @property
    def fixed_point(self) -> Integer:
        return self

    @property
    def onnx_type(self) -> str | None:
        return onnx_integer(self.width, is_signed=self.is_signed)

    def values_by_code(self) -> Tensor:
        return whole_values(self.width, is_signed=self.is_signed) * self.integer_step()

    def integer_step(self) -> float:
        return float(2.0**-self.frac_width)

    @property
    def bits(self) -> float:
        return float(self.width)

    @property
    def range(self) -> tuple[float, float]:
        return EVERYWHERE if self.overflow == "wrap" else self.bounds(torch.float64)

    def bounds(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return the smallest and largest value, moved towards zero if `dtype` cannot hold them."""
        unit = 2.0**-self.frac_width
        high = all_ones(self.width - self.is_signed, dtype) * unit
        if not self.is_signed:
            return 0.0, high
        return (-high if self.narrow else -(2 ** (self.width - 1)) * unit), high

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        noise = self.noise_for(x, noise)
        wraps = self.overflow == "wrap"
        period = 2.0 ** (self.width - self.frac_width)
        x = x.fmod(period) if wraps else x  # exact, and rounding does not see whole periods
        y = round_to_multiple(x, -self.frac_width, self.rounding, noise)
        low, high = self.bounds(x.dtype)
        if wraps:
            y = torch.where(y > high, y - period, y)
            y = torch.where(y < low, y + period, y)
        else:
            y = y.clamp(low, high)
        return torch.where(y == 0, 0.0, y)  # two's complement has one zero

    def kernel(self) -> Kernel | None:
        if self.overflow == "wrap":
            return None
        return self.rounded_kernel("fixed", (-self.frac_width, *self.bounds(torch.float32)))

    def value_set(self) -> Tensor | None:
        if self.width > 8:
            return None
        low, high = Integer.bounds(self, torch.float64)
        unit = 2.0**-self.frac_width
        return torch.arange(low / unit, high / unit + 1, dtype=torch.float64) * unit
