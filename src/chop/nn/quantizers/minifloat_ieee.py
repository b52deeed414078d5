"""Small floating point in the manner of IEEE 754."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from chop.nn.quantizers.base import RoundingQuantizer, check, check_between
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.minifloat import (
    FloatGrid,
    Special,
    bias_or_default,
    float_kernel,
    round_to_float,
)


@dataclass(frozen=True)
class GridQuantizer(RoundingQuantizer):
    """A format whose values are a `FloatGrid`."""

    @property
    def grid(self) -> FloatGrid:
        """The values of this format."""
        raise NotImplementedError

    @property
    def overflows_to_special(self) -> bool:
        """Whether a value beyond the largest becomes Inf or NaN instead of the largest."""
        return False

    @property
    def bits(self) -> float:
        return 1.0 + self.grid.exponent_width + self.grid.mantissa_width

    @property
    def range(self) -> tuple[float, float]:
        return -self.grid.limit(), self.grid.limit()

    def value_set(self) -> Tensor | None:
        return self.grid.values() if self.bits <= 8 else None

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        grid, noise = self.grid, self.noise_for(x, noise)
        y = round_to_float(x, grid.mantissa_width, grid.min_exponent, self.rounding, noise)
        y = self._bounded(y, grid.limit(x.dtype))
        return torch.where(y == 0, 0.0, y) if grid.special == "fnuz" else y

    def _bounded(self, y: Tensor, limit: float) -> Tensor:
        beyond = torch.copysign(y.new_tensor(self._beyond(limit)), y)
        return torch.where(y.abs() > limit, beyond, y)

    def _beyond(self, limit: float) -> float:
        """What a magnitude above the limit becomes."""
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


@dataclass(frozen=True)
class MinifloatIEEE(GridQuantizer):
    """Floats of 1 sign, `exponent_width` and the remaining bits of mantissa, with subnormals.

    >>> MinifloatIEEE(8, 4).quantize(torch.tensor([0.30, 1e9, 0.003])).tolist()
    [0.3125, 240.0, 0.00390625]

    `exponent_bias` centres the exponents if not given. `special` lists the codes that are no
    numbers (see `FloatGrid`). A value that rounds beyond the largest saturates, or with
    `overflow = "special"` becomes Inf ("ieee") or NaN ("fn", "fnuz"). NaN stays NaN.
    """

    name: ClassVar[str] = "minifloat_ieee"
    class_suffix: ClassVar[str] = "MinifloatIEEE"

    width: int
    exponent_width: int
    exponent_bias: int | None = None
    special: Special = "ieee"
    overflow: Literal["saturate", "special"] = "saturate"

    def __post_init__(self) -> None:
        check_between("width", self.width, 2, 32)
        self.grid.check()
        has_code = self.overflow == "saturate" or self.special != "none"
        check(has_code, "overflow = 'special' needs a special other than 'none'.")

    @property
    def grid(self) -> FloatGrid:
        bias = bias_or_default(self.exponent_bias, self.exponent_width, self.special)
        mantissa_width = self.width - 1 - self.exponent_width
        return FloatGrid(self.exponent_width, mantissa_width, bias, self.special)

    @property
    def overflows_to_special(self) -> bool:
        return self.overflow == "special"
