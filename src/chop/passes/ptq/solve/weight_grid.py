"""Grid of values that a weight's format rounds to, with an explicit range for each group.

Most formats derive their scale from the largest magnitude of a channel, group or block. Here this
magnitude is a separate number: a range may clip, and columns can be rounded one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.scale_integer import SMALLEST_SCALE

INTEGER_CLIPS = tuple(1.0 - 0.02 * i for i in range(30))
POWER_CLIPS = (1.0, 2.0, 0.5, 0.25)
"""Ranges to try, relative to the largest magnitude; powers of two differ only by doubling."""


@dataclass(frozen=True)
class WeightGrid:
    """Rounding of a weight of shape (rows, columns).

    `groups`: the group of each column. `count`: number of groups. `is_whole`: one range for all
    rows. `shape`: shape of the layer's weight.
    """

    quantizer: Quantizer
    groups: Tensor
    count: int
    is_whole: bool = False
    shape: tuple[int, ...] = (-1,)

    @property
    def has_range(self) -> bool:
        """True if values depend on a range; those of plain fixed or floating point do not."""
        return self.quantizer.has_range

    def largest(self, weight: Tensor) -> Tensor:
        """Return the largest magnitude of each group, (rows, groups)."""
        largest = weight.new_zeros(weight.shape[0], self.count)
        index = self.groups.expand(weight.shape[0], -1)
        largest.scatter_reduce_(1, index, weight.abs(), "amax", include_self=True)
        return largest.amax().expand_as(largest) if self.is_whole else largest

    def round(self, x: Tensor, largest: Tensor) -> Tensor:
        """Return `x` in the format; `largest`, which broadcasts to its shape, is the range."""
        scaled, blocks = self.quantizer.scaled, self.quantizer.blocks
        if scaled is not None:
            return scaled.represent_at(x, self.scales(largest))
        if blocks is not None:
            return blocks.represent_blocks(x, largest.expand_as(x), None)
        return self.quantizer.quantize(x)

    def as_stored(self, rounded: Tensor, ranges: Tensor) -> Tensor:
        """Return a rounded weight as its layer will compute it.

        A format without stored scales measures the ranges of the rounded values again.
        """
        if self.quantizer.scaled is not None:
            return self.round(rounded, ranges[:, self.groups])
        return self.quantizer.quantize(rounded.reshape(self.shape)).reshape(rounded.shape)

    def scales(self, largest: Tensor) -> Tensor:
        """Return the scales of integers that reach `largest`; negative for a negative one."""
        scaled = self.quantizer.scaled
        assert scaled is not None, f"{self.quantizer} has no scale"
        scales = largest / scaled.integers[1]
        return torch.where(scales.abs() < SMALLEST_SCALE, SMALLEST_SCALE, scales)

    def chosen_range(self, weight: Tensor, importance: Tensor) -> Tensor:
        """Return the range with the least error for each group, (rows, groups).

        `importance` weights the squared error of each column. Integers with one more value below
        zero than above (`narrow = false`) may be mirrored: their range is then negative.
        """
        largest = self.largest(weight)
        if not self.has_range:
            return largest
        best, least = largest, torch.full_like(largest, torch.inf)
        for clip in self._clips():
            rounded = self.round(weight, (largest * clip)[:, self.groups])
            squared = (weight - rounded).square() * importance
            error = torch.zeros_like(largest).index_add_(1, self.groups, squared)
            error = error.sum().expand_as(error) if self.is_whole else error
            best = torch.where(error < least, largest * clip, best)
            least = torch.minimum(error, least)
        return best

    def _clips(self) -> tuple[float, ...]:
        form = self.quantizer.scaled
        if form is None:
            return POWER_CLIPS
        low, high = form.integers
        is_lopsided = form.is_signed and low != -high and form.zero_point == 0
        return INTEGER_CLIPS + tuple(-c for c in INTEGER_CLIPS if is_lopsided)


def weight_grid(
    quantizer: Quantizer, shape: torch.Size, where: str, device: torch.device | str = "cpu"
) -> WeightGrid:
    """Return the grid of a weight of `shape`, whose first dimension are the rows."""
    run, group = _runs(quantizer, shape, where)
    number = torch.arange(shape[1:].numel(), device=device)
    per_run = -(-run // group)
    groups = (number // run) * per_run + (number % run) // group
    scaled = quantizer.scaled
    is_whole = scaled is not None and scaled.granularity == "tensor"
    return WeightGrid(quantizer, groups, int(groups[-1]) + 1, is_whole, tuple(shape))


def _runs(quantizer: Quantizer, shape: torch.Size, where: str) -> tuple[int, int]:
    """Return the number of columns after which groups start again, and the columns of a group."""
    last, columns = shape[-1], shape[1:].numel()
    blocks, scaled = quantizer.blocks, quantizer.scaled
    if blocks is not None:
        if blocks.tile[0] != 1 or blocks.axis not in (-1, len(shape) - 1):
            raise ConfigError(
                f"{where}: block_size = {blocks.block_size} along axis {blocks.axis}. "
                "Allowed here: blocks of one dimension along the last axis."
            )
        size = blocks.tile[1]
        return last, last if size == -1 else min(size, last)
    if scaled is not None:
        if scaled.granularity == "group":
            return last, min(scaled.group_size, last)
        if scaled.granularity == "channel" and scaled.axis % len(shape) != 0:
            raise ConfigError(
                f"{where}: channels along axis {scaled.axis}. Allowed here: axis 0, the rows."
            )
    return columns, columns
