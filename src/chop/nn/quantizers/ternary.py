"""Ternary values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.quantizer import EVERYWHERE, Quantizer

MEAN_FRACTION = 0.75
MAXIMUM_FRACTION = 0.05
"""Default thresholds as fractions of the mean and of the largest magnitude."""


@dataclass(frozen=True)
class Ternary(Quantizer):
    """-a, 0 or +a: the sign of x where |x| > d, else 0.

    >>> Ternary(threshold=0.25).quantize(torch.tensor([0.30, -0.2, -1.0])).tolist()
    [1.0, 0.0, -1.0]

    d is `threshold` if given, else 0.05 `maximum` if that is given, else 0.75 `mean`, which
    defaults to the mean of |x|. a is 1, or with `scaling_factor` the mean of |x| over |x| > d (0
    if there is none). Without a scale the masked gradient passes where |x| <= 1. NaN stays NaN.
    """

    name, class_suffix = "ternary", "Ternary"
    search_settings: ClassVar = {"scaling_factor": [True, False]}
    legacy = ("width", "frac_width", "median", "max")
    bits = 2.0

    scaling_factor: bool = False
    threshold: float | None = None
    mean: float | None = None
    maximum: float | None = None

    @classmethod
    def modern(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        return super().modern({"maximum" if k == "max" else k: v for k, v in settings.items()})

    @property
    def range(self) -> tuple[float, float]:
        return EVERYWHERE if self.scaling_factor else (-1.0, 1.0)

    def part_unit(self, rank: int, dim: int) -> int | None:
        settings = (self.threshold, self.mean, self.maximum)
        is_measured = self.scaling_factor or all(value is None for value in settings)
        return None if is_measured else 1

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        magnitude = x.abs()
        is_large = magnitude > self._threshold(magnitude)
        y = torch.where(is_large, torch.sign(x), 0.0)
        if self.scaling_factor:
            total = torch.where(is_large, magnitude, 0.0).sum()
            y = y * (total / is_large.sum().clamp(min=1))
        return torch.where(x.isnan(), x, y)

    def _threshold(self, magnitude: Tensor) -> Tensor | float:
        if self.threshold is not None:
            return self.threshold
        if self.maximum is not None:
            return MAXIMUM_FRACTION * self.maximum
        return MEAN_FRACTION * (magnitude.mean() if self.mean is None else self.mean)

    def value_set(self) -> Tensor | None:
        if self.scaling_factor:
            return None
        return torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
