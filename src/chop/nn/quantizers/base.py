"""What every number format is: a frozen dataclass, tensor in, representable values out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.rounding import Rounding, make_noise

Bound = float | Tensor
StraightThrough = Literal["masked", "identity"]


@dataclass(frozen=True)
class Quantizer:
    """A number format. Fields are the config keys without their operand prefix.

    A format defines `represent` (the values, in PyTorch) and `bits`; the rest is common:

    - `quantize(x)` gives the values alone and is the reference;
    - calling the format gives the same values with a straight-through gradient;
    - `ste` says where the gradient passes: "masked" where `x` lies in the format's range,
      "identity" everywhere.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    class_suffix: ClassVar[str]
    legacy: ClassVar[tuple[str, ...]] = ()
    """Settings of older configs that are no fields; `modern` translates or drops them."""

    ste: StraightThrough = field(default="masked", kw_only=True)

    @classmethod
    def modern(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings as fields: `legacy` ones are dropped unless a format knows better."""
        return {key: value for key, value in settings.items() if key not in cls.legacy}

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """The format's definition on a float32 or float64 tensor that is not empty."""
        raise NotImplementedError

    def quantize(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """The representable values of `x`, same shape and dtype.

        `noise`, uniform in [0, 1) and shaped as `x`, replaces the random numbers of stochastic
        rounding. Half-precision tensors are computed in float32 and rounded to their type.
        """
        if not x.is_floating_point():
            raise ConfigError(f"{self.name}: expected a floating-point tensor, got {x.dtype}.")
        if x.numel() == 0:
            return x.clone()
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        return self.represent(wide, noise).to(x.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """`quantize(x)`, with a straight-through gradient."""
        if x.requires_grad and torch.is_grad_enabled():
            return _straight_through(x, self)
        return self.quantize(x)

    @property
    def bits(self) -> float:
        """Average bits that storing one element takes, shared exponents included."""
        raise NotImplementedError

    @property
    def range(self) -> tuple[float, float]:
        """Where the gradient passes when masked: the smallest and largest value, else infinite."""
        return -math.inf, math.inf

    def value_set(self) -> Tensor | None:
        """All finite values in order, for formats of at most 8 bits that do not depend on `x`."""
        return None

    def clip_range(self, x: Tensor) -> tuple[Bound, Bound] | None:
        """Between which values (that broadcast with `x`) the gradient passes; None: everywhere."""
        everywhere = self.ste == "identity" or self.range == (-math.inf, math.inf)
        return None if everywhere else self.range

    def surrogate(self, x: Tensor) -> Tensor:
        """The continuous function whose slope is the gradient of this format."""
        clip = self.clip_range(x)
        return x if clip is None else x.clamp(clip[0], clip[1])  # type: ignore[arg-type]


@dataclass(frozen=True)
class RoundingQuantizer(Quantizer):
    """A format with a choice of rounding; `seed` fixes the random numbers of "stochastic"."""

    rounding: Rounding = field(default="nearest_even", kw_only=True)
    seed: int | None = field(default=None, kw_only=True)

    def noise_for(self, x: Tensor, noise: Tensor | None) -> Tensor | None:
        """The random numbers that this rounding mode needs, None for all but "stochastic"."""
        if self.rounding != "stochastic":
            return None
        return make_noise(x, self.seed) if noise is None else noise.to(x.dtype)


class _StraightThrough(torch.autograd.Function):
    """The given values, with the gradient of x where `passes`, everywhere if that is None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, passes: Tensor | None) -> Tensor:
        ctx.save_for_backward(passes)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (passes,) = ctx.saved_tensors
        gradient = gradients[0]
        return gradient if passes is None else torch.where(passes, gradient, 0.0), None, None


def _straight_through(x: Tensor, quantizer: Quantizer) -> Tensor:
    value = x.detach()
    clip = quantizer.clip_range(value)
    passes = None if clip is None else (value >= clip[0]) & (value <= clip[1])
    return _StraightThrough.apply(x, quantizer.quantize(value), passes)


def check(condition: bool, message: str) -> None:
    """Refuse a setting: `message` says what was given and what is allowed."""
    if not condition:
        raise ConfigError(message)


def check_between(name: str, value: int, low: int, high: int) -> None:
    """Refuse a setting outside its range."""
    check(low <= value <= high, f"{name} must be from {low} to {high}, got {value}.")
