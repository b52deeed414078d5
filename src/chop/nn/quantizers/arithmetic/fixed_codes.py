"""Conversion of tensors to codes of a fixed-point format and back."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.integer import Integer

LARGEST_WIDTH = 16
"""Most bits of an operand, a weight or a bias."""
MOST_BITS = 53
"""Most bits of an exact result before rounding: a double holds them."""


def encode(x: Tensor, number: Integer) -> Tensor:
    """Return the codes of `x` as int64; NaN becomes 0.

    >>> encode(torch.tensor([0.30, -9.0]), Integer(8, 4)).tolist()
    [5, -128]
    """
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()  # halves lack bits
    values = number(wide.detach().nan_to_num(nan=0.0))
    return (values.double() * 2.0**number.frac_width).to(torch.int64)


def decode(codes: Tensor, frac_width: int, out: Integer, dtype: torch.dtype) -> Tensor:
    """Return codes * 2**-frac_width, rounded to the format `out`."""
    return out(codes.double() * 2.0**-frac_width).to(dtype)


def check_width(number: Integer, what: str) -> None:
    """Raise if a format is too wide."""
    if number.width > LARGEST_WIDTH:
        raise ConfigError(
            f"{what}_width must be at most {LARGEST_WIDTH} with arithmetic = 'integer', got "
            f"{number.width}."
        )


def bit_length(x: Tensor) -> Tensor:
    """Return the bits of each number from 0 to 2**62: 0 for 0, 3 for 4.

    >>> bit_length(torch.tensor([0, 1, 3, 4, 2**53 + 1])).tolist()
    [0, 1, 2, 3, 54]
    """
    length, rest = torch.zeros_like(x), x
    for step in (32, 16, 8, 4, 2, 1):
        has_more = rest >> step > 0
        length = torch.where(has_more, length + step, length)
        rest = torch.where(has_more, rest >> step, rest)
    return length + rest  # the rest is 0 or 1
