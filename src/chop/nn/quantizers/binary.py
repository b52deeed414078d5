"""One bit: the sign, or whether a value is above a threshold."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from chop.nn.quantizers.quantizer import Quantizer
from chop.nn.quantizers.rounding import make_noise


@dataclass(frozen=True)
class Binary(Quantizer):
    """+1 where x >= `threshold`, else -1 (`bipolar`) or 0.

    >>> Binary().quantize(torch.tensor([0.30, -0.2, -0.0])).tolist()
    [1.0, -1.0, 1.0]

    With `stochastic`, +1 has the probability (x + 1) / 2, clipped to 0 and 1; `seed` fixes the
    random numbers. The masked gradient passes where |x| <= 1. NaN stays NaN.
    """

    name, class_suffix = "binary", "Binary"
    maps_elements = True
    legacy = ("width", "frac_width")
    bits, range = 1.0, (-1.0, 1.0)

    stochastic: bool = False
    bipolar: bool = True
    threshold: float = 0.0
    seed: int | None = field(default=None, kw_only=True)

    @property
    def is_random(self) -> bool:
        return self.stochastic

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        if self.stochastic:
            noise = make_noise(x, self.seed) if noise is None else noise
            is_high = noise < (x + 1) / 2
        else:
            is_high = x >= self.threshold
        y = torch.where(is_high, 1.0, -1.0 if self.bipolar else 0.0).to(x.dtype)
        return torch.where(x.isnan(), x, y)

    def value_set(self) -> Tensor | None:
        return torch.tensor([-1.0 if self.bipolar else 0.0, 1.0], dtype=torch.float64)
