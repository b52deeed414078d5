"""Rounding to integers and to multiples of a power of two.

Add a mode: a row in `ROUNDINGS` and its name in `Rounding`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from chop.nn.quantizers.powers import LAYOUTS, times_power

Rounding = Literal["nearest_even", "nearest_away", "floor", "toward_zero", "stochastic"]
NOISE_BITS = 24  # the precision of float32


def _away(x: Tensor, noise: Tensor | None) -> Tensor:
    whole = x.trunc()
    return whole + torch.copysign(((x - whole).abs() >= 0.5).to(x.dtype), x)


def _stochastic(x: Tensor, noise: Tensor | None) -> Tensor:
    # floor(|x| + noise) without the rounding error of the sum
    assert noise is not None, "stochastic rounding needs its noise"
    magnitude = x.abs()
    whole = magnitude.floor()
    up = (magnitude - whole) >= 1 - noise
    return torch.copysign(whole + up.to(x.dtype), x)


ROUNDINGS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "nearest_even": lambda x, noise: x.round(),
    "nearest_away": _away,
    "floor": lambda x, noise: x.floor(),
    "toward_zero": lambda x, noise: x.trunc(),
    "stochastic": _stochastic,
}


def round_to_multiple(
    x: Tensor, exponent: Tensor | int, rounding: Rounding, noise: Tensor | None = None
) -> Tensor:
    """Round `x` to a multiple of 2**exponent; the sign of a zero is the sign of `x`."""
    finest = LAYOUTS[x.dtype].min_exponent  # every value is a multiple of 2**finest already
    exponent = max(exponent, finest) if isinstance(exponent, int) else exponent.clamp(min=finest)
    scaled = times_power(x, -exponent)
    whole = ROUNDINGS[rounding](scaled, noise)
    if rounding == "floor":  # a tiny negative value may have underflowed to zero
        whole = torch.where((scaled == 0) & (x < 0), -1.0, whole)
    return times_power(whole, exponent)


def make_noise(x: Tensor, seed: int | None) -> Tensor:
    """Return uniform multiples of 2**-24 in [0, 1), shaped as `x`.

    Without a seed they come from torch's generator. With one they depend only on the seed and the
    position: the same at each call, on each device, and when compiled.
    """
    if seed is None:
        return torch.rand(x.shape, dtype=torch.float32, device=x.device).to(x.dtype)
    position = torch.arange(x.numel(), dtype=torch.int64, device=x.device)
    bits = _scramble(_scramble(position + (seed << 8)) + seed)
    return (bits >> (32 - NOISE_BITS)).to(x.dtype).reshape(x.shape) * 2.0**-NOISE_BITS


def _scramble(value: Tensor) -> Tensor:
    """Map 32-bit integers one to one, each input bit to all output bits."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x446CA68B)):
        value = value & 0xFFFFFFFF
        value = (value ^ (value >> shift)) * factor  # below 2**63: the factor has 31 bits
    value = value & 0xFFFFFFFF
    return value ^ (value >> 16)
