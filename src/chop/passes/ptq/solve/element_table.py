"""Tables of the values of block formats, and of the numbers from which each value is the nearest.

They are computed from the format's own rounding, by bisection over all double-precision numbers, so
that no format needs a second definition.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.nn.quantizers import BlockQuantizer
from chop.nn.quantizers.powers import power_of_two
from chop.nn.quantizers.scaled_blocks import ScaledBlocks

SAMPLES = 4096
RANGES = (0.0, 2.0**-130, 1e-3, 0.7, 1.0, 6.0, 1e4, 2.0**120)
"""Ranges at which a table is compared with its format."""


@dataclass(frozen=True)
class ElementTable:
    """Values before the scale, in order, and the limits between neighbours (`ordered_bits`).

    A number rounds to value k if limit k - 1 is the last limit that is not above it.
    """

    limits: Tensor
    values: Tensor

    def round(self, x: Tensor, scales: Tensor) -> Tensor:
        """Return the values of `x` at scales that broadcast with it; the definition of `Table`."""
        ratios = torch.where(scales == 0, x * 0.0, x / scales)
        place = torch.searchsorted(self.limits, ordered_bits(ratios), right=True)
        return torch.where(ratios.isnan(), ratios, self.values[place] * scales)


def ordered_bits(x: Tensor) -> Tensor:
    """Return the bits of numbers in double precision, in the order of the numbers.

    >>> ordered_bits(torch.tensor([-0.0, 0.0], dtype=torch.double)).tolist()
    [-1, 0]
    """
    bits = x.view(torch.int64)
    return bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)


def _number(bits: Tensor) -> Tensor:
    """Invert `ordered_bits`."""
    return (bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)).view(torch.float64)


def element_scales(blocks: BlockQuantizer, largest: Tensor) -> Tensor:
    """Return the scale of blocks with these largest magnitudes."""
    if isinstance(blocks, ScaledBlocks):
        return blocks.block_scales(largest, blocks.tensor_scale_of(largest))
    return power_of_two(blocks.scale_exponent(largest), largest.dtype)


@functools.lru_cache(maxsize=64)
def element_table(blocks: BlockQuantizer) -> ElementTable | None:
    """Return the table of a format; None if it has more than 256 values, or rounds otherwise."""
    codes = blocks.code_values()
    if codes is None or blocks.is_random or not _has_fixed_scales(blocks):
        return None
    codes = codes[codes.isfinite()]
    values = _number(ordered_bits(_elements(blocks, codes)).unique())
    low, high = ordered_bits(values)[:-1], ordered_bits(values)[1:]
    upper = high
    while ((high - low) > 1).any():
        middle = low + (high - low) // 2
        is_up = ordered_bits(_elements(blocks, _number(middle))) >= upper
        low, high = torch.where(is_up, low, middle), torch.where(is_up, middle, high)
    table = ElementTable(high, values)
    return table if _agrees(blocks, table) else None


def _has_fixed_scales(blocks: BlockQuantizer) -> bool:
    """Return True if the scale of a block depends on its largest magnitude alone."""
    if isinstance(blocks, ScaledBlocks):
        small, large = (blocks.tensor_scale_of(torch.full((1,), x)) for x in (1.0, 2.0))
        return (small is None and large is None) or torch.equal(small, large)  # type: ignore[arg-type]
    return type(blocks).scale_exponent is not BlockQuantizer.scale_exponent


def _elements(blocks: BlockQuantizer, x: Tensor) -> Tensor:
    """Return `x` rounded at a scale of 1."""
    if isinstance(blocks, ScaledBlocks):
        return blocks.elements(x, torch.ones_like(x))
    one = torch.ones_like(x)
    scale = element_scales(blocks, one)
    return blocks.represent_blocks(x * scale, one, None) / scale


def _agrees(blocks: BlockQuantizer, table: ElementTable) -> bool:
    """Return True if the table rounds as the format at all limits and at random numbers."""
    draw = torch.Generator().manual_seed(0)
    random = torch.randn(SAMPLES, generator=draw, dtype=torch.float64) * 4 * table.values.max()
    x = torch.cat([table.values, _number(table.limits), _number(table.limits - 1), random])
    for largest in RANGES:
        ranges = torch.full_like(x, largest)
        scales = element_scales(blocks, ranges)
        unit = scales if largest else 1.0
        expected = blocks.represent_blocks(x * unit, ranges, None)
        if not _are_same(table.round(x * unit, scales), expected):
            return False
    return True


def _are_same(x: Tensor, y: Tensor) -> bool:
    """Return True if all bits are equal."""
    return torch.equal(x.view(torch.int64), y.view(torch.int64))
