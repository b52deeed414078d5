"""MXINT codes of vectors and matrices: mantissas in blocks that share a power of two.

A vector of 16-bit codes becomes MXINT8: a block has the smallest exponent from 0 at which its
largest code fits a mantissa. A row of the cache may be MXINT4. A matrix is stored with exponents
from 0 to `TOP_EXPONENT`. The smallest one belongs to the whole matrix: blocks that are smaller are
rounded to its step. A matrix in fixed point has one exponent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chop.nn.quantizers.arithmetic.fixed_codes import bit_length
from chop.nn.quantizers.mxint import MXInt
from chop.nn.quantizers.powers import floor_log2

WIDTH = 16
"""Bits of an element of a vector."""
MANTISSA = 8
"""Bits of an MXINT8 mantissa."""
TOP_EXPONENT = 15
"""Largest exponent of a block of a matrix."""


@dataclass(frozen=True)
class BlockCodes:
    """Mantissas (…, blocks, block size) and exponents (…, blocks) of MXINT numbers."""

    mantissas: Tensor
    exponents: Tensor

    @property
    def codes(self) -> Tensor:
        """Integers mantissa * 2**exponent, in the shape of the source."""
        codes = self.mantissas << self.exponents[..., None]
        return codes.flatten(-2)

    @cached_property
    def columns(self) -> Tensor:
        """Mantissas of a matrix in float32, as (blocks, rows, block size)."""
        return self.mantissas.transpose(0, 1).float().contiguous()

    def __getitem__(self, index: object) -> BlockCodes:
        return BlockCodes(self.mantissas[index], self.exponents[index])  # type: ignore[index]


@dataclass(frozen=True)
class BlockMatrix:
    """Matrix in MXINT or fixed point: its numbers are codes * 2**-frac_width."""

    blocks: BlockCodes
    frac_width: int
    width: int
    is_fixed: bool = False
    """All exponents are `TOP_EXPONENT`, and memory does not hold them."""


def vector_blocks(codes: Tensor, block: int, width: int = MANTISSA) -> BlockCodes:
    """Return 16-bit codes as MXINT of `width` bits.

    >>> blocks = vector_blocks(torch.tensor([1, 254, 255, 32767]), 2)
    >>> blocks.mantissas.tolist(), blocks.exponents.tolist()
    ([[0, 127], [1, 127]], [1, 8])
    """
    shaped = codes.unflatten(-1, (-1, block))  # type: ignore[no-untyped-call]
    exponents = (bit_length(shaped.abs().amax(-1)) - (width - 1)).clamp(min=0)
    number = MXInt(width, block_size=block)
    # blocks whose codes fit a mantissa are integers already: MXINT would keep fractions of them
    rounded = torch.where(
        exponents[..., None] > 0, number.quantize(codes.double()).reshape(shaped.shape), shaped
    )
    return BlockCodes(rounded.to(torch.int64) >> exponents[..., None], exponents)


def matrix_blocks(weight: Tensor, width: int, block: int) -> BlockMatrix:
    """Return the rows of `weight` in MXINT of `width` bits, rounded half to even."""
    shaped = weight.double().reshape(*weight.shape[:-1], -1, block)
    largest = shaped.abs().amax(-1)
    top = int(floor_log2(largest.max())) if bool(largest.any()) else 0
    lowest = top - TOP_EXPONENT
    exponents = (floor_log2(largest) - lowest).clamp(0, TOP_EXPONENT).to(torch.int64)
    frac_width = width - 2 - lowest
    limit = (1 << (width - 1)) - 1
    scaled = shaped * 2.0 ** (frac_width - exponents[..., None].double())
    mantissas = scaled.round().clamp(-limit, limit).to(torch.int64)
    return BlockMatrix(BlockCodes(mantissas, exponents), frac_width, width)


def fixed_matrix(weight: Tensor, width: int, block: int) -> BlockMatrix:
    """Return `weight` in fixed point: the codes of a matrix have one scale, a power of two.

    >>> matrix = fixed_matrix(torch.tensor([[0.5, -1.0]]), 4, 2)
    >>> matrix.blocks.mantissas.tolist(), matrix.frac_width - TOP_EXPONENT
    ([[[4, -8]]], 3)
    """
    shaped = weight.double().reshape(*weight.shape[:-1], -1, block)
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    frac_width = width - 1 - int(torch.frexp(shaped.abs().max())[1])
    least, most = float(shaped.min()), float(shaped.max())
    if least * 2.0 ** (frac_width + 1) == low and round(most * 2.0 ** (frac_width + 1)) <= high:
        frac_width += 1  # the lowest code has no positive counterpart
    mantissas = (shaped * 2.0**frac_width).round().clamp(low, high).to(torch.int64)
    # the exponent of the largest MXINT block, so that results drop the same bits
    exponents = torch.full(mantissas.shape[:-1], TOP_EXPONENT, dtype=torch.int64)
    blocks = BlockCodes(mantissas, exponents)
    return BlockMatrix(blocks, frac_width + TOP_EXPONENT, width, is_fixed=True)


def multiply(matrix: BlockCodes, vector: BlockCodes) -> Tensor:
    """Return the exact product of a matrix (rows, blocks, size) and a vector (blocks, size)."""
    # a sum within a block is below 2**24: float32 holds it
    sums = torch.bmm(matrix.columns, vector.mantissas.float()[..., None])[..., 0].T
    shifts = matrix.exponents + vector.exponents
    return (sums.to(torch.int64) << shifts).sum(-1)


def cast(codes: Tensor, dropped: int, width: int = WIDTH) -> Tensor:
    """Return codes / 2**dropped, rounded half to even and saturated to `width` bits.

    >>> cast(torch.tensor([1, 3, 5, -3, 1 << 40]), 1).tolist()
    [0, 2, 2, -2, 32767]
    """
    high = (1 << (width - 1)) - 1
    if dropped == 0:
        return codes.clamp(~high, high)
    is_odd = (codes >> dropped) & 1
    rounded = (codes + ((1 << (dropped - 1)) - 1) + is_odd) >> dropped
    return rounded.clamp(~high, high)
