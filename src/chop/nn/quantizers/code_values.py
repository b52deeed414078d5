"""Values of codes: two's complement, sign and magnitude, and small floats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from chop.nn.quantizers.minifloat import FloatGrid


def twos_complement(bits: int) -> Tensor:
    """Return 0, 1 ... -2, -1."""
    high = 2 ** (bits - 1)
    return ((torch.arange(2**bits) + high) % (2 * high) - high).double()


def whole_values(bits: int, *, is_signed: bool) -> Tensor:
    """Return the integers of all codes: two's complement, or from 0 up."""
    return twos_complement(bits) if is_signed else torch.arange(2**bits).double()


def onnx_integer(bits: int, *, is_signed: bool = True) -> str | None:
    """Return the narrowest integer type of ONNX with `bits` bits, None above 8."""
    width = next((width for width in (4, 8) if bits <= width), None)
    return None if width is None else f"{'' if is_signed else 'U'}INT{width}"


def sign_and(magnitudes: Tensor) -> Tensor:
    """Return magnitudes, then their negatives, negative zero included."""
    return torch.cat([magnitudes, -magnitudes])


def float_table(grid: FloatGrid) -> Tensor:
    """Return the values of sign, exponent and mantissa, special codes included."""
    codes = torch.arange(2 ** (grid.exponent_width + grid.mantissa_width))
    field, fraction = codes >> grid.mantissa_width, codes & (2**grid.mantissa_width - 1)
    is_normal = field > 0
    mantissa = torch.where(is_normal, fraction + 2**grid.mantissa_width, fraction).double()
    positive = mantissa * 2.0 ** (torch.where(is_normal, field - 1, 0)).double() * grid.tiny
    if grid.special == "ieee":
        is_top = field == 2**grid.exponent_width - 1
        special = torch.where(fraction == 0, math.inf, math.nan).double()
        positive = torch.where(is_top, special, positive)
    if grid.special == "fn":
        positive[-1] = math.nan
    both = sign_and(positive)
    if grid.special == "fnuz":
        both[positive.numel()] = math.nan
    return both
