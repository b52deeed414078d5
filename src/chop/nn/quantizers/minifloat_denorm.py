"""Small floating point without the implicit leading one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.minifloat import (
    bias_or_default,
    check_float32,
    float_kernel,
    round_to_float,
)
from chop.nn.quantizers.powers import all_ones
from chop.nn.quantizers.quantizer import RoundingQuantizer, check, check_between
from chop.nn.quantizers.spelling import float_stem


@dataclass(frozen=True)
class MinifloatDenorm(RoundingQuantizer):
    """Floats 2**(e - bias) * m / 2**M with M mantissa bits and no implicit one; no code is special.

    >>> MinifloatDenorm(8, 4).quantize(torch.tensor([0.30, 1e9, 0.001])).tolist()
    [0.3125, 224.0, 0.0009765625]

    Several codes may have the same value. Values beyond the largest
    saturate. NaN stays NaN.
    """

    name, class_suffix = "minifloat_denorm", "MinifloatDenorm"
    maps_elements = True
    stem = float_stem("minifloat_denorm")
    search_settings: ClassVar = {"width": [8, 10, 12], "exponent_width": [4, 5]}

    width: int
    exponent_width: int
    exponent_bias: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 4, 32)
        check_between("exponent_width", self.exponent_width, 1, 8)
        check(self.mantissa_width >= 2, "width must be at least exponent_width + 3.")
        check_float32(self.range[1], math.ldexp(1.0, -self.bias - self.mantissa_width), self.bias)

    @property
    def mantissa_width(self) -> int:
        """Bits of mantissa, the leading one included."""
        return self.width - 1 - self.exponent_width

    @property
    def bias(self) -> int:
        """`exponent_bias`, or the one that centres the exponents."""
        return bias_or_default(self.exponent_bias, self.exponent_width)

    @property
    def bits(self) -> float:
        return float(self.width)

    @property
    def range(self) -> tuple[float, float]:
        return -self.limit(torch.float64), self.limit(torch.float64)

    def limit(self, dtype: torch.dtype) -> float:
        """Return the largest value that `dtype` holds."""
        unit = self.max_exponent + 1 - self.mantissa_width
        return math.ldexp(all_ones(self.mantissa_width, dtype), unit)

    @property
    def min_exponent(self) -> int:
        """Exponent below which the mantissa loses its leading bits."""
        return -self.bias - 1

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest value."""
        return int(2**self.exponent_width - 2 - self.bias)

    def kernel(self) -> Kernel | None:
        if self.min_exponent < -126:
            return None
        exponents, limit = (self.min_exponent, self.max_exponent), self.limit(torch.float32)
        return self.rounded_kernel(*float_kernel(self.mantissa_width - 1, exponents, limit, limit))

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        noise = self.noise_for(x, noise)
        limit = self.limit(x.dtype)
        y = round_to_float(x, self.mantissa_width - 1, self.min_exponent, self.rounding, noise)
        return y.clamp(-limit, limit)

    def value_set(self) -> Tensor | None:
        if self.width > 8:
            return None
        mantissas = torch.arange(2**self.mantissa_width, dtype=torch.float64)
        exponents = torch.arange(2**self.exponent_width, dtype=torch.float64) - self.bias
        positive = mantissas * 2.0 ** (exponents - self.mantissa_width).unsqueeze(1)
        return torch.cat([-positive, positive]).unique()
