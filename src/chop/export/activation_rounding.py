"""The rounding of activations as one operator, which exporters translate.

`torch.ops.mase.round_to_steps(x, scale, zero_point, low, high, axis)` is
(clamp(round(x / scale) + zero_point, low, high) - zero_point) * scale; `axis` is the dimension that
`scale` belongs to, where it has more than one value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers import Binary, Bypass, Integer, Quantizer, ScaleInteger, Ternary


@torch.library.custom_op("mase::round_to_steps", mutates_args=())
def round_to_steps(
    x: Tensor, scale: Tensor, zero_point: int, low: int, high: int, axis: int
) -> Tensor:
    """`x` rounded to whole steps of `scale`."""
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
    """A format of integers as a call of the operator."""

    is_bypass: ClassVar[bool] = False

    scale_values: tuple[float, ...] = (1.0,)
    zero_point: int = 0
    low: int = -128
    high: int = 127
    axis: int = -1

    def __call__(self, x: Tensor) -> Tensor:
        """`x` rounded, where it is a float."""
        one = len(self.scale_values) == 1
        scale = torch.tensor(self.scale_values[0] if one else self.scale_values, dtype=x.dtype)
        made: Tensor = torch.ops.mase.round_to_steps(
            x, scale, self.zero_point, self.low, self.high, self.axis
        )
        return made


@dataclass(frozen=True)
class Arithmetic:
    """A format whose definition is arithmetic that exporters translate as it is."""

    is_bypass: ClassVar[bool] = False

    format: Quantizer

    def __call__(self, x: Tensor) -> Tensor:
        """`x` rounded by the definition."""
        return self.format.quantize(x)


Rounding = Bypass | Steps | Arithmetic
"""What exporters know."""


def exportable(form: Any, stored: Tensor | None = None) -> Rounding | None:
    """The format in terms of what exporters know; None where they do not."""
    if form.is_bypass:
        return Bypass()
    if getattr(form, "rounding", "nearest_even") != "nearest_even":
        return None
    makers: dict[type[Quantizer], Callable[[Any, Tensor | None], Rounding | None]] = {
        Integer: _integer,
        ScaleInteger: _scale_integer,
        Binary: _arithmetic,
        Ternary: _arithmetic,
    }
    make = next((makers[cls] for cls in type(form).__mro__ if cls in makers), None)
    return None if make is None else make(form, stored)


def _integer(form: Integer, stored: Tensor | None) -> Rounding | None:
    if form.overflow == "wrap":
        return None
    low, high = (round(bound * 2.0**form.frac_width) for bound in form.bounds(torch.float64))
    return Steps(scale_values=(2.0**-form.frac_width,), low=low, high=high)


def _scale_integer(form: ScaleInteger, stored: Tensor | None) -> Rounding | None:
    low, high = form.integers
    if form.is_stored:
        if stored is None or form.granularity == "group" or not bool((stored > 0).all()):
            return None
        values = tuple(stored.detach().double().reshape(-1).tolist())
        return Steps(values, form.zero_point, low, high, axis=form.axis)
    if form.scale is None:
        return None if form.granularity == "group" else Arithmetic(form)
    if form.granularity == "group":
        return None
    values = form.scale if isinstance(form.scale, tuple) else (float(form.scale),)
    return Steps(values, form.zero_point, low, high, axis=form.axis)


def _arithmetic(form: Quantizer, stored: Tensor | None) -> Rounding | None:
    return None if getattr(form, "stochastic", False) else Arithmetic(form)
