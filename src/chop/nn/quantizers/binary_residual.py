"""Several bits: the sign of x, the sign of the remainder, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.binary_scaling import channel_unit, mean_magnitude, sign
from chop.nn.quantizers.quantizer import Quantizer, check_between
from chop.nn.quantizers.spelling import number_stem


@dataclass(frozen=True)
class BinaryResidual(Quantizer):
    """The sum over `levels` of the sign of the residual times its mean magnitude.

    >>> BinaryResidual(levels=2).quantize(torch.tensor([1.0, -0.5, 0.0])).tolist()
    [0.8333333730697632, -0.1666666567325592, 0.1666666567325592]

    Level 1 is the sign of x, level 2 the sign of the remainder, and so on. Means are over the whole
    tensor, or over each channel along `axis`. The masked gradient passes where |x| <= 1.
    """

    name, class_suffix = "binary_residual", "BinaryResidualSign"
    stem = number_stem("binary_residual", "levels", 2)
    search_settings: ClassVar = {"levels": [2, 3, 4]}
    legacy = ("width", "frac_width", "stochastic", "bipolar", "residual_sign")
    range = (-1.0, 1.0)

    levels: int = 2
    axis: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("levels", self.levels, 1, 8)

    @property
    def bits(self) -> float:
        return float(self.levels)

    def part_unit(self, rank: int, dim: int) -> int | None:
        return channel_unit(self.axis, rank, dim)

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        y, residual = torch.zeros_like(x), x
        for _ in range(self.levels):
            step = sign(residual) * mean_magnitude(residual, self.axis)
            y, residual = y + step, residual - step
        return y
