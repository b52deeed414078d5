"""Grid of values that a weight's format rounds to, with an explicit range for each group.

Most formats derive their scale from the largest magnitude of a channel, group or block. Here this
magnitude is a separate number: a range may clip, and columns can be rounded one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers import BlockQuantizer, Quantizer
from chop.nn.quantizers.scale_integer import SMALLEST_SCALE
from chop.passes.ptq.solve.column_kernels import ColumnKernels, column_kernels
from chop.passes.ptq.solve.element_table import element_scales

INTEGER_CLIPS = tuple(1.0 - 0.02 * i for i in range(30))
POWER_CLIPS = (1.0, 2.0, 0.5, 0.25)
"""Ranges to try, relative to the largest magnitude; powers of two differ only by doubling."""
AT_ONCE = 1 << 21
"""Elements of a weight whose ranges are searched at a time: each needs about 100 bytes."""
SCALES_AT_ONCE = 1 << 24
"""Scales to try that are in memory at a time, on a GPU."""
TIE = 1 - 2.0**-40
"""Factor that a smaller error must stay below: two ranges may round alike, and on a GPU the order
of additions then would decide."""
MOST_ROUNDINGS = 3
"""Roundings after which real scales that are measured again no longer change."""


@dataclass(frozen=True)
class WeightGrid:
    """Rounding of a weight of shape (rows, columns).

    `groups`: the group of each column. `count`: number of groups. `tile_rows`: neighbouring rows
    that share their ranges. `shape`: shape of the layer's weight. `rounder`: the format with what
    it measures on the whole weight.
    """

    quantizer: Quantizer
    groups: Tensor
    count: int
    tile_rows: int = 1
    shape: tuple[int, ...] = (-1,)
    rounder: BlockQuantizer | None = None

    @property
    def shares_rows(self) -> bool:
        """True if rows share their ranges."""
        return self.tile_rows != 1

    @property
    def is_whole(self) -> bool:
        """True if integers have one scale for the whole weight."""
        scaled = self.quantizer.scaled
        return scaled is not None and scaled.granularity == "tensor"

    @property
    def has_range(self) -> bool:
        """True if values depend on a range; those of plain fixed or floating point do not."""
        return self.quantizer.has_range

    def largest(self, weight: Tensor) -> Tensor:
        """Return the largest magnitude of each group, (rows, groups)."""
        largest = weight.new_zeros(weight.shape[0], self.count)
        index = self.groups.expand(weight.shape[0], -1)
        largest.scatter_reduce_(1, index, weight.abs(), "amax", include_self=True)
        return self._over_rows(largest, Tensor.amax)

    def _over_rows(self, per_row: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """Return (rows, groups) reduced over the rows of each tile, in the same shape."""
        if not self.shares_rows:
            return per_row
        tiles = torch.split(per_row, self.tile_rows)
        return torch.cat([reduce(rows, 0, True).expand_as(rows) for rows in tiles])

    def round(self, x: Tensor, largest: Tensor) -> Tensor:
        """Return `x` in the format; `largest`, which broadcasts to its shape, is the range."""
        scaled, blocks = self.quantizer.scaled, self.rounder or self.quantizer.blocks
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
        values = self.quantizer.quantize(rounded.reshape(self.shape))
        if self.quantizer.blocks is not None and not self.quantizer.blocks.has_powers:
            for _ in range(MOST_ROUNDINGS):  # the last bit of a measured scale may still change
                values = self.quantizer.quantize(values)
        return values.reshape(rounded.shape)

    def measured_again(self, rounded: Tensor) -> Iterator[WeightGrid]:
        """Yield the grid for each rounding of `as_stored`, with what it measures on all rows.

        The rows of `rounded` are replaced by `stored_rows` between two of them.
        """
        blocks = None if self.quantizer.scaled is not None else self.quantizer.blocks
        is_once = blocks is None or blocks.has_powers
        for _ in range(1 if is_once else 1 + MOST_ROUNDINGS):
            if blocks is None:
                yield self
            else:
                largest = torch.stack(torch.aminmax(rounded)).abs().amax()
                yield replace(self, quantizer=blocks.measured_on(largest))

    def stored_rows(self, rounded: Tensor, ranges: Tensor) -> Tensor:
        """Return some rows of a rounded weight by a grid of `measured_again`."""
        if self.quantizer.scaled is not None:
            return self.round(rounded, ranges[:, self.groups])
        rows = rounded.reshape(len(rounded), *self.shape[1:])
        return self.quantizer.quantize(rows).reshape(rounded.shape)

    def kernels(self, weight: Tensor) -> ColumnKernels | None:
        """Return the GPU kernels for this format and a weight; None if there are none."""
        return column_kernels(self.rounder or self.quantizer, weight)

    def element_scales(self, ranges: Tensor) -> Tensor:
        """Return the scales of integers or blocks with these ranges."""
        if self.quantizer.scaled is not None:
            return self.scales(ranges)
        assert self.rounder is not None, f"{self.quantizer} has no scales"
        return element_scales(self.rounder, ranges)

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
        if self.shares_rows or not self.has_range:
            return self._chosen(weight, importance)
        kernels = self.kernels(weight)
        if kernels is not None:
            importance = importance.to(weight.dtype).contiguous()
            return self._chosen_by_kernels(kernels, weight.contiguous(), importance)
        rows = max(AT_ONCE // max(weight.shape[1], 1), 1)
        return torch.cat([self._chosen(part, importance) for part in torch.split(weight, rows)])

    def _chosen(self, weight: Tensor, importance: Tensor) -> Tensor:
        largest = self.largest(weight)
        if not self.has_range:
            return largest
        best, least = largest, torch.full_like(largest, torch.inf)
        for clip in self._clips():
            rounded = self.round(weight, (largest * clip)[:, self.groups])
            squared = (weight - rounded).square() * importance
            error = torch.zeros_like(largest).index_add_(1, self.groups, squared)
            error = self._over_rows(error, Tensor.sum)
            best = torch.where(error < least * TIE, largest * clip, best)
            least = torch.minimum(error, least)
        return best

    def _chosen_by_kernels(
        self, kernels: ColumnKernels, weight: Tensor, importance: Tensor
    ) -> Tensor:
        """Return the result of `_chosen`, whose errors are added in another order."""
        sizes = self.groups.bincount(minlength=self.count)
        starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        clips = torch.tensor(self._clips(), dtype=weight.dtype, device=weight.device)
        rows = max(SCALES_AT_ONCE // (len(clips) * self.count), 1)
        chosen = []
        for part in torch.split(weight, rows):
            ranges = kernels.largest(part, starts) * clips[:, None, None]
            best = kernels.best(part, starts, self.element_scales(ranges), importance, TIE)
            chosen.append(ranges.gather(0, best[None].long())[0])
        return torch.cat(chosen)

    def _clips(self) -> tuple[float, ...]:
        form = self.quantizer.scaled
        if form is None:
            has_powers = self.quantizer.blocks is None or self.quantizer.blocks.has_powers
            return POWER_CLIPS if has_powers else INTEGER_CLIPS
        low, high = form.integers
        is_lopsided = form.is_signed and low != -high and form.zero_point == 0
        return INTEGER_CLIPS + tuple(-c for c in INTEGER_CLIPS if is_lopsided)


def weight_grid(quantizer: Quantizer, weight: Tensor, where: str) -> WeightGrid:
    """Return the grid of a weight, whose first dimension are the rows."""
    shape = weight.shape
    run, group = _runs(quantizer, shape, where)
    number = torch.arange(shape[1:].numel(), device=weight.device)
    per_run = -(-run // group)
    groups = (number // run) * per_run + (number % run) // group
    blocks = quantizer.blocks
    rounder = None if blocks is None else blocks.measured_on(weight.detach().float())
    rows = _tile_rows(quantizer, shape)
    return WeightGrid(quantizer, groups, int(groups[-1]) + 1, rows, tuple(shape), rounder)


def _tile_rows(quantizer: Quantizer, shape: torch.Size) -> int:
    """Return the number of neighbouring rows that share their ranges."""
    scaled, blocks = quantizer.scaled, quantizer.blocks
    rows = 1 if blocks is None else blocks.tile[0]
    is_whole = scaled is not None and scaled.granularity == "tensor"
    return shape[0] if is_whole or rows == -1 else rows


def _runs(quantizer: Quantizer, shape: torch.Size, where: str) -> tuple[int, int]:
    """Return the number of columns after which groups start again, and the columns of a group."""
    last, columns = shape[-1], shape[1:].numel()
    blocks, scaled = quantizer.blocks, quantizer.scaled
    if blocks is not None:
        is_tiled = blocks.tile[0] != 1 and len(shape) != 2
        if is_tiled or blocks.axis not in (-1, len(shape) - 1):
            raise ConfigError(
                f"{where}: block_size = {blocks.block_size} along axis {blocks.axis}. "
                "Allowed here: blocks along the last axis, and tiles of a matrix."
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
