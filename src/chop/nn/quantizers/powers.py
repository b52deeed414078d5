"""Exact powers of two on tensors, by the exponent field and never by log2."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Bit layout of a floating-point type."""

    integer: torch.dtype
    fraction: int
    bias: int

    @property
    def precision(self) -> int:
        """Significant bits, the implicit one included."""
        return self.fraction + 1

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest subnormal; every finite value is a multiple of its power."""
        return 1 - self.bias - self.fraction


LAYOUTS = {
    torch.float32: Layout(torch.int32, 23, 127),
    torch.float64: Layout(torch.int64, 52, 1023),
}


def floor_log2(x: Tensor) -> Tensor:
    """Return floor(log2|x|) exactly, as integers. Zero is below every value, Inf and NaN above.

    >>> floor_log2(torch.tensor([0.75, 8.0])).tolist()
    [-1, 3]
    """
    integer, fraction, bias = LAYOUTS[x.dtype]
    magnitude = x.abs()
    lift = fraction + 1  # makes a subnormal normal
    field = magnitude.view(integer) >> fraction
    lifted = ((magnitude * 2.0**lift).view(integer) >> fraction) - lift
    return torch.where(field == 0, lifted, field) - bias


def power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 2**exponent for exponents of normal numbers."""
    integer, fraction, bias = LAYOUTS[dtype]
    return ((exponent.to(integer) + bias) << fraction).view(dtype)


def times_power(x: Tensor, exponent: Tensor | int) -> Tensor:
    """Return x * 2**exponent, exact unless the result is subnormal or overflows."""
    # two steps: 2**exponent itself may be no normal number
    if isinstance(exponent, int):
        return x * 2.0 ** (exponent >> 1) * 2.0 ** (exponent - (exponent >> 1))
    half = exponent >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(exponent - half, x.dtype)


def all_ones(bits: int, dtype: torch.dtype) -> int:
    """Return 2**bits - 1, or the next smaller number that `dtype` holds."""
    return int(2**bits - 2 ** max(bits - LAYOUTS[dtype].precision, 0))


def over(x: Tensor, number: float) -> Tensor:
    """Return x / number, rounded once; torch multiplies by 1 / number on a GPU, which rounds twice.

    >>> over(torch.tensor([1.0, 2.0]), 4).tolist()
    [0.25, 0.5]
    """
    return x / x.new_full((), number)
