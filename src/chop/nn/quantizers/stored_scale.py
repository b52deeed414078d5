"""Integers whose scales are tensors of a layer, calibrated or learned.

A layer whose operand has `scale = "stored"` stores the scales in a buffer or parameter named after
the operand (`weight_scale`): one per tensor, per channel along `axis`, or per group along the last
dimension, of every row or the same for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.quantizers.quantizer import Quantizer
from chop.nn.quantizers.rounding import ROUNDINGS
from chop.nn.quantizers.scale_integer import SMALLEST_SCALE, ScaleInteger


class ScaledInteger:
    """A format with the layer's scales; called like a format.

    The gradient passes to `x` where it is not clipped. A scale that trains has the gradient of a
    learned step size (Esser et al., 2020): the rounding error inside the range, the bound outside,
    times 1 / sqrt(n · largest integer). n is the number of elements that share the scale, per
    sample for an input. A `zero_point` tensor trains too (Bhalgat et al., 2020).
    """

    def __init__(
        self,
        form: ScaleInteger,
        scale: Tensor,
        zero_point: Tensor | None = None,
        *,
        has_samples: bool = False,
    ) -> None:
        self.format, self.scale, self.zero_point = form, scale, zero_point
        self._has_samples = has_samples
        self._versions = [t._version for t in self._tensors]

    @property
    def _tensors(self) -> list[Tensor]:
        return [t for t in (self.scale, self.zero_point) if t is not None]

    @property
    def trains(self) -> bool:
        """True if the scales receive gradients now."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in self._tensors)

    def __eq__(self, other: object) -> bool:
        """Return True if both compute the same values; caches compare by it."""
        return (
            isinstance(other, ScaledInteger)
            and self.format == other.format
            and self.scale is other.scale
            and self.zero_point is other.zero_point
            and self._versions == other._versions
        )

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Tensor) -> Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        scale = _away_from_zero(self._paced(self.scale, wide).to(wide.dtype))
        scale = expanded(scale, self.format, wide)
        zero: Tensor | int = self.format.zero_point
        if self.zero_point is not None:
            learned = self._paced(self.zero_point, wide).to(wide.dtype)
            zero = _straight(learned.round().clamp(*self.format.integers), learned)
        low, high = (wide.new_tensor(float(end)) - zero for end in self.format.integers)
        if not (self.trains or (torch.is_grad_enabled() and x.requires_grad)):
            whole = ROUNDINGS[self.format.rounding](wide / scale, None)
            y = torch.minimum(torch.maximum(whole, low), high) * scale
            return torch.where(y == 0, 0.0, y).to(x.dtype)
        steps = wide / scale
        if self.format.ste == "masked":
            steps = torch.minimum(torch.maximum(steps, low), high)
        whole = ROUNDINGS[self.format.rounding](steps, None)
        whole = torch.minimum(torch.maximum(whole, low), high)
        return (_straight(whole, steps) * scale).to(x.dtype)

    def scales_of(self, x: Tensor) -> Tensor:
        """Return the scales as a tensor that broadcasts with `x`."""
        return expanded(_away_from_zero(self.scale.to(x.dtype)), self.format, x)

    def _paced(self, value: Tensor, x: Tensor) -> Tensor:
        """Return `value` with the gradient of a learned step size."""
        if not (torch.is_grad_enabled() and value.requires_grad):
            return value
        samples = x.shape[0] if self._has_samples and x.dim() > 1 else 1
        shared = max(1, x.numel() // (samples * value.numel()))
        pace = 1.0 / math.sqrt(shared * self.format.integers[1])
        return _straight(value.detach(), value * pace)


def _away_from_zero(scale: Tensor) -> Tensor:
    """Return scales that are safe to divide by; a negative one stays negative."""
    return torch.where(scale < 0, scale.clamp(max=-SMALLEST_SCALE), scale.clamp(min=SMALLEST_SCALE))


def _straight(value: Tensor, source: Tensor) -> Tensor:
    """Return `value` with the gradient of `source`."""
    return value.detach() + (source - source.detach())


def expanded(scale: Tensor, form: ScaleInteger, x: Tensor) -> Tensor:
    """Return the scales as a tensor that broadcasts with `x`."""
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
    """Return the formats of a layer's operands, with their scales if the layer stores them."""
    return {role: with_stored_scale(module, role, q) for role, q in quantizers.items()}


def with_stored_scale(module: nn.Module, role: str, quantizer: Quantizer) -> Any:
    """Return the format of one operand, together with its scales if the layer stores them.

    An operator that an exporter put in place of the format is returned unchanged.
    """
    if not isinstance(quantizer, ScaleInteger) or not quantizer.is_stored:
        return quantizer
    scale, zero_point = (getattr(module, f"{role}_{n}", None) for n in ("scale", "zero_point"))
    if not isinstance(scale, Tensor):
        raise ConfigError(
            f"{type(module).__name__}: {role}_scale = 'stored', and the layer has no tensor "
            f"'{role}_scale'. Calibrate it, or register the buffer."
        )
    is_input = role.startswith("data_")
    zero = zero_point if isinstance(zero_point, Tensor) else None
    return ScaledInteger(quantizer, scale, zero, has_samples=is_input)
