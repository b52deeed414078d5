"""A few bits: the sign of x, of what that leaves, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.base import Quantizer, check_between
from chop.nn.quantizers.binary_scaling import mean_magnitude, sign
from chop.nn.quantizers.spelling import Stem


@dataclass(frozen=True)
class BinaryResidual(Quantizer):
    """The sum over `levels` of the sign of the residual times its mean magnitude.

    >>> BinaryResidual(levels=2).quantize(torch.tensor([1.0, -0.5, 0.0])).tolist()
    [0.8333333730697632, -0.1666666567325592, 0.1666666567325592]

    Level 1 takes the sign of x, level 2 the sign of what level 1 leaves, and so on. Means are over
    the whole tensor, or over each channel along `axis`. The masked gradient passes where |x| <= 1.
    """

    name: ClassVar[str] = "binary_residual"
    class_suffix: ClassVar[str] = "BinaryResidualSign"
    stem: ClassVar[Stem] = Stem(
        "binary_residual<levels>",
        "binary_residual2",
        r"binary_residual(?P<levels>\d{1,4})",
        lambda q: f"binary_residual{q.levels}",
    )
    search_settings: ClassVar[Mapping[str, Any]] = {"levels": [2, 3, 4]}
    legacy: ClassVar[tuple[str, ...]] = (
        "width",
        "frac_width",
        "stochastic",
        "bipolar",
        "residual_sign",
    )

    levels: int = 2
    axis: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("levels", self.levels, 1, 8)

    @property
    def bits(self) -> float:
        return float(self.levels)

    @property
    def range(self) -> tuple[float, float]:
        return -1.0, 1.0

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        y, residual = torch.zeros_like(x), x
        for _ in range(self.levels):
            step = sign(residual) * mean_magnitude(residual, self.axis)
            y, residual = y + step, residual - step
        return y
