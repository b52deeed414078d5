"""Blocks of small floats that share a real scale."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.nn.quantizers.blocks import BlockQuantizer, in_blocks, join, split
from chop.nn.quantizers.code_values import float_table
from chop.nn.quantizers.minifloat import FloatGrid, round_to_float
from chop.nn.quantizers.powers import over
from chop.nn.quantizers.rounding import Rounding

SMALLEST_SCALE = 2.0**-126  # smallest normal float32


def as_float32(x: Tensor) -> Tensor:
    """Return `x` rounded to float32, in its own dtype, as a scale that is safe to divide by."""
    return x.float().clamp(min=SMALLEST_SCALE).to(x.dtype)


def _divided(x: Tensor, scales: Tensor) -> Tensor:
    """Return `x` over its scales; a scale of 0 leaves a zero with the sign of `x`."""
    return torch.where(scales == 0, x * 0.0, x / scales)


@dataclass(frozen=True)
class ScaledBlocks(BlockQuantizer):
    """A format of small floats times a real scale per block.

    The scale of a block is its largest magnitude over the largest float. A format may share one
    more scale among all blocks (`tensor_scale_of`).
    """

    @property
    def grid(self) -> FloatGrid:
        """Values of an element before its scale."""
        raise NotImplementedError

    @property
    def has_powers(self) -> bool:
        return False

    @property
    def element_bits(self) -> int:
        return 1 + self.grid.exponent_width + self.grid.mantissa_width

    def values_by_code(self) -> Tensor:
        return float_table(self.grid)

    def tensor_scale_of(self, x: Tensor) -> Tensor | None:
        """Return the scale that all blocks of `x` share; None if there is none."""
        return None

    def stored_scales(self, largest: Tensor, tensor_scale: Tensor | None) -> Tensor:
        """Return the scale that each block stores, given its largest magnitude."""
        return as_float32(over(largest, self.grid.limit()))

    def block_scales(self, largest: Tensor, tensor_scale: Tensor | None) -> Tensor:
        """Return the product of the stored scale and the tensor's scale for each block."""
        stored = self.stored_scales(largest, tensor_scale)
        return stored if tensor_scale is None else stored * tensor_scale

    def near(self, values: Tensor) -> Iterator[ScaledBlocks]:
        """Yield formats that may have rounded a tensor to `values`, the likeliest first."""
        yield self

    def elements(self, x: Tensor, scales: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return `x` over its scales, rounded to the floats of the grid."""
        return self._rounded(_divided(x, scales), self.rounding, noise)

    def nearest(self, values: Tensor, scales: Tensor) -> Tensor:
        """Return the floats that `values` of this format are multiples of."""
        return self._rounded(_divided(values, scales), "nearest_even", None)

    def _rounded(self, steps: Tensor, rounding: Rounding, noise: Tensor | None) -> Tensor:
        grid = self.grid
        q = round_to_float(steps, grid.mantissa_width, grid.min_exponent, rounding, noise)
        return q.clamp(-grid.limit(), grid.limit())

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        rule = functools.partial(self._represent, tensor_scale=self.tensor_scale_of(x))
        return in_blocks(x, self.tile, self.axis, rule, self.noise_for(x, noise))

    def represent_blocks(self, x: Tensor, largest: Tensor, noise: Tensor | None) -> Tensor:
        return self._represent(x, largest, noise, self.tensor_scale_of(largest))

    def _represent(
        self, x: Tensor, largest: Tensor, noise: Tensor | None, tensor_scale: Tensor | None
    ) -> Tensor:
        scales = self.block_scales(largest, tensor_scale)
        return self.elements(x, scales, noise) * scales

    def scales_of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the stored scale of each block, (..., rows, columns), and the tensor's scale."""
        rows = torch.atleast_2d(x.movedim(self.axis, -1) if x.dim() > 1 else x)
        largest = split(rows, self.tile).abs().amax((-3, -1))
        tensor_scale = self.tensor_scale_of(x)
        return self.stored_scales(largest, tensor_scale), tensor_scale


def spread_tiles(scales: Tensor, shape: torch.Size, tile: tuple[int, int], axis: int) -> Tensor:
    """Return one scale per element of a tensor of `shape`, given one per tile in order."""
    like = torch.empty(shape, device="meta")
    moved = like.movedim(axis, -1) if like.dim() > 1 else like
    rows = torch.atleast_2d(moved).shape
    high, wide = (n if t == -1 else min(t, n) for n, t in zip(rows[-2:], tile, strict=True))
    down, across = -(-rows[-2] // high), -(-rows[-1] // wide)
    per_tile = scales.reshape(*rows[:-2], down, 1, across, 1)
    every = join(per_tile.expand(*rows[:-2], down, high, across, wide), rows).reshape(moved.shape)
    return every.movedim(-1, axis) if like.dim() > 1 else every
