"""Rounding of activations as one operator, which exporters translate.

`torch.ops.mase.round_to_steps(x, scale, zero_point, low, high, axis)` is
(clamp(round(x / scale) + zero_point, low, high) - zero_point) * scale; `axis` is the dimension of a
`scale` with more than one value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers import Binary, Bypass, Quantizer, ScaleInteger, Ternary


@torch.library.custom_op("mase::round_to_steps", mutates_args=())
def round_to_steps(
    x: Tensor, scale: Tensor, zero_point: int, low: int, high: int, axis: int
) -> Tensor:
    """Round `x` to multiples of `scale`."""
    spread = scale
    if scale.numel() > 1:
        spread = scale.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
    whole = (x / spread).round() + zero_point
    y = (whole.clamp(low, high) - zero_point) * spread
    return torch.where(y == 0, 0.0, y)


@round_to_steps.register_fake
def _(x: Tensor, scale: Tensor, zero_point: int, low: int, high: int, axis: int) -> Tensor:
    return torch.empty_like(x)


@dataclass(frozen=True)
class Steps:
    """Integer format as a call of the operator."""

    is_bypass: ClassVar[bool] = False

    scale_values: tuple[float, ...] = (1.0,)
    zero_point: int = 0
    low: int = -128
    high: int = 127
    axis: int = -1

    def __call__(self, x: Tensor) -> Tensor:
        """Round `x`."""
        values: Any = self.scale_values[0] if len(self.scale_values) == 1 else self.scale_values
        scale = torch.tensor(values, dtype=x.dtype)
        rounded: Tensor = torch.ops.mase.round_to_steps(
            x, scale, self.zero_point, self.low, self.high, self.axis
        )
        return rounded


@dataclass(frozen=True)
class Arithmetic:
    """Format whose definition is plain arithmetic, which exporters translate directly."""

    is_bypass: ClassVar[bool] = False

    format: Quantizer

    def __call__(self, x: Tensor) -> Tensor:
        """Round `x` by the definition."""
        return self.format.quantize(x)


Rounding = Bypass | Steps | Arithmetic
"""Roundings that exporters can translate."""


def exportable(form: Any, stored: Tensor | None = None) -> Rounding | None:
    """Return the format as a rounding that exporters can translate, or None."""
    if form.is_bypass:
        return Bypass()
    if getattr(form, "rounding", "nearest_even") != "nearest_even":
        return None
    if form.fixed_point is not None:
        if form.overflow == "wrap":
            return None
        low, high = (round(bound * 2.0**form.frac_width) for bound in form.bounds(torch.float64))
        return Steps(scale_values=(2.0**-form.frac_width,), low=low, high=high)
    if form.scaled is not None:
        return _scale_integer(form, stored)
    is_plain = bool({Binary, Ternary} & {*type(form).__mro__})
    return Arithmetic(form) if is_plain and not getattr(form, "stochastic", False) else None


def _scale_integer(form: ScaleInteger, stored: Tensor | None) -> Rounding | None:
    if form.granularity == "group":
        return None
    if form.is_stored:
        if stored is None or not bool((stored > 0).all()):
            return None
        values = tuple(stored.detach().double().reshape(-1).tolist())
    elif form.scale is None:
        return Arithmetic(form)
    else:
        values = form.scale if isinstance(form.scale, tuple) else (float(form.scale),)
    low, high = form.integers
    return Steps(values, form.zero_point, low, high, axis=form.axis)
