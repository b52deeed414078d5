"""Integers whose scales are tensors that a layer keeps: calibrated, or learned as the layer trains.

A layer whose operand has `scale = "stored"` keeps its scales in a buffer or parameter of the
operand's name, `weight_scale` for `weight`. There is one for the whole tensor, or one for each
channel along `axis`, or one for each group along the last dimension, of every row or of all rows
alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.quantizers.base import Quantizer
from chop.nn.quantizers.rounding import ROUNDINGS
from chop.nn.quantizers.scale_integer import ScaleInteger


class ScaledInteger:
    """A format together with the layer's scales; called as a format is.

    The gradient passes to `x` where it is not clipped. Where the scale trains, it gets the
    gradient of a learned step size: the rounding error inside the range, the bound outside.
    """

    def __init__(self, form: ScaleInteger, scale: Tensor) -> None:
        self.format, self.scale = form, scale
        self._version = scale._version

    def __eq__(self, other: object) -> bool:
        """Whether it gives the same values: kept results are used again by this."""
        return (
            isinstance(other, ScaledInteger)
            and self.format == other.format
            and self.scale is other.scale
            and self._version == other._version
        )

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Tensor) -> Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        scale = expanded(self.scale.to(wide.dtype), self.format, wide)
        trains = torch.is_grad_enabled() and (x.requires_grad or scale.requires_grad)
        if not trains:
            return self.format.represent_at(wide, scale).to(x.dtype)
        low, high = (q - self.format.zero_point for q in self.format.integers)
        steps = wide / scale
        if self.format.ste == "masked":
            steps = steps.clamp(low, high)
        whole = ROUNDINGS[self.format.rounding](steps, None).clamp(low, high)
        return ((steps + (whole - steps).detach()) * scale).to(x.dtype)


def expanded(scale: Tensor, form: ScaleInteger, x: Tensor) -> Tensor:
    """The scales as a tensor that broadcasts with `x`."""
    if form.granularity == "tensor" or scale.dim() == 0:
        return scale
    if form.granularity == "channel":
        axis = form.axis % x.dim()
        _check(scale, (x.shape[axis],), form)
        return scale.reshape([-1 if d == axis else 1 for d in range(x.dim())])
    groups = -(-x.shape[-1] // form.group_size)
    if scale.shape != (groups,):  # the same groups of every row, as of an input
        _check(scale, (*x.shape[:-1], groups), form)
    return scale.repeat_interleave(form.group_size, -1)[..., : x.shape[-1]]


def _check(scale: Tensor, shape: tuple[int, ...], form: ScaleInteger) -> None:
    if tuple(scale.shape) != shape:
        raise ConfigError(
            f"scale_integer: the stored scales have shape {tuple(scale.shape)}; "
            f"granularity '{form.granularity}' takes {shape}."
        )


def with_stored_scales(module: nn.Module, quantizers: Mapping[str, Quantizer]) -> dict[str, Any]:
    """The formats of a layer's operands, those with stored scales together with them."""
    return {role: with_stored_scale(module, role, q) for role, q in quantizers.items()}


def with_stored_scale(module: nn.Module, role: str, quantizer: Quantizer) -> Any:
    """The format of one operand, together with its scales where the layer stores them."""
    if not isinstance(quantizer, ScaleInteger) or not quantizer.is_stored:
        return quantizer
    scale = getattr(module, f"{role}_scale", None)
    if not isinstance(scale, Tensor):
        raise ConfigError(
            f"{type(module).__name__}: {role}_scale = 'stored', and the layer has no tensor "
            f"'{role}_scale'. Calibrate it, or register the buffer."
        )
    return ScaledInteger(quantizer, scale)
