"""Tensors of numbers to codes of a fixed-point format and back."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.integer import Integer

LARGEST_WIDTH = 16
"""Bits of an operand, a weight or a bias."""
MOST_BITS = 53
"""Bits of an exact result before it is brought to its format: a double holds them."""


def encode(x: Tensor, number: Integer) -> Tensor:
    """The codes of `x`, as int64; of what is no number, 0.

    >>> encode(torch.tensor([0.30, -9.0]), Integer(8, 4)).tolist()
    [5, -128]
    """
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()  # halves lack bits
    values = number(wide.detach().nan_to_num(nan=0.0))
    return (values.double() * 2.0**number.frac_width).to(torch.int64)


def decode(codes: Tensor, frac_width: int, out: Integer, dtype: torch.dtype) -> Tensor:
    """codes * 2**-frac_width, brought to the format `out`."""
    return out(codes.double() * 2.0**-frac_width).to(dtype)


def check_width(number: Integer, what: str) -> None:
    """Refuse a format that is too wide."""
    if number.width > LARGEST_WIDTH:
        raise ConfigError(
            f"{what}_width must be at most {LARGEST_WIDTH} with arithmetic = 'integer', got "
            f"{number.width}."
        )


def rows_last(x: Tensor, dim: int) -> Tensor:
    """`x` with dimension `dim` moved to the end."""
    return x.movedim(dim, -1)


def bit_length(x: Tensor) -> Tensor:
    """Bits of each number from 0 to 2**62: 0 for 0, 3 for 4.

    >>> bit_length(torch.tensor([0, 1, 3, 4, 2**53 + 1])).tolist()
    [0, 1, 2, 3, 54]
    """
    found, rest = torch.zeros_like(x), x
    for step in (32, 16, 8, 4, 2, 1):
        has_more = rest >> step > 0
        found = torch.where(has_more, found + step, found)
        rest = torch.where(has_more, rest >> step, rest)
    return found + rest  # what is left is 0 or 1
