"""Three values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.base import EVERYWHERE, Quantizer

OF_MEAN = 0.75
OF_MAXIMUM = 0.05


@dataclass(frozen=True)
class Ternary(Quantizer):
    """-a, 0 or +a: the sign of x where |x| > d, else 0.

    >>> Ternary(threshold=0.25).quantize(torch.tensor([0.30, -0.2, -1.0])).tolist()
    [1.0, 0.0, -1.0]

    d is `threshold` if given, else 0.05 `maximum` if that is given, else 0.75 `mean`, which
    defaults to the mean of |x|. a is 1, or with `scaling_factor` the mean of |x| over |x| > d (0
    if there is none). Without a scale the masked gradient passes where |x| <= 1. NaN stays NaN.
    """

    name: ClassVar[str] = "ternary"
    class_suffix: ClassVar[str] = "Ternary"
    search_settings: ClassVar[Mapping[str, Any]] = {"scaling_factor": [True, False]}
    legacy: ClassVar[tuple[str, ...]] = ("width", "frac_width", "median", "max")

    scaling_factor: bool = False
    threshold: float | None = None
    mean: float | None = None
    maximum: float | None = None

    @classmethod
    def modern(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        renamed = {"maximum" if k == "max" else k: v for k, v in settings.items()}
        return super().modern(renamed)

    @property
    def bits(self) -> float:
        return 2.0

    @property
    def range(self) -> tuple[float, float]:
        return EVERYWHERE if self.scaling_factor else (-1.0, 1.0)

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        magnitude = x.abs()
        kept = magnitude > self._threshold(magnitude)
        y = torch.where(kept, torch.sign(x), 0.0)
        if self.scaling_factor:
            total = torch.where(kept, magnitude, 0.0).sum()
            y = y * (total / kept.sum().clamp(min=1))
        return torch.where(x.isnan(), x, y)

    def _threshold(self, magnitude: Tensor) -> Tensor | float:
        if self.threshold is not None:
            return self.threshold
        if self.maximum is not None:
            return OF_MAXIMUM * self.maximum
        return OF_MEAN * (magnitude.mean() if self.mean is None else self.mean)

    def value_set(self) -> Tensor | None:
        if self.scaling_factor:
            return None
        return torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
