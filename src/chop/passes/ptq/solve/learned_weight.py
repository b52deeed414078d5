"""A weight whose rounding and ranges are learned.

Learned are an offset of each element, in steps of the format, that is added before rounding, and
for integers with scales a factor of each scale. Gradients pass through the rounding unchanged, and
only their signs are used (Cheng et al., 2023), so every element moves by the same amount.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Bypass
from chop.passes.ptq.solve.weight_grid import WeightGrid

FINEST = 2.0**-16
"""Smallest step that is searched for, relative to the largest magnitude of a weight."""


class LearnedWeight:
    """Weight of one layer while its rounding is learned.

    `grid` and `weight`, (rows, columns), belong to `layer`; where `mask` is False the weight is
    pruned. `offsets` move each element by at most `reach` steps; `factors` scale the ranges.
    """

    def __init__(
        self,
        layer: QuantizedModule,
        grid: WeightGrid,
        weight: Tensor,
        mask: Tensor | None,
        reach: float,
    ) -> None:
        self.layer, self.grid, self.weight, self.reach = layer, grid, weight, reach
        self.ranges = _ranges(layer, grid, weight)
        self.steps = _steps(grid, weight, self.ranges)
        if mask is not None:
            self.steps = self.steps.masked_fill(~mask, 0.0)  # pruned: zero stays zero
        self.offsets = torch.zeros_like(self.weight, requires_grad=True)
        learns_ranges = grid.quantizer.scaled is not None  # shared exponents are no numbers
        ranges = self.ranges[:1, :1] if grid.is_whole else self.ranges  # one scale for all
        self.factors = torch.ones_like(ranges, requires_grad=learns_ranges)
        self._shape = cast(Tensor, layer.weight).shape

    def value(self) -> Tensor:
        """Return the rounded weight; gradients pass through the rounding."""
        moved = self.weight + self.offsets * self.steps
        form = self.grid.quantizer.scaled
        if form is None:
            rounded = self.grid.as_stored(moved.detach(), self.ranges)
            return (moved + (rounded - moved).detach()).reshape(self._shape)
        scales = (self.grid.scales(self.ranges) * self.factors)[:, self.grid.groups]
        low, high = (q - form.zero_point for q in form.integers)
        steps = (moved / scales).clamp(low, high)
        whole = (form.represent_at(steps, steps.new_ones(())) - steps).detach() + steps
        return (whole * scales).reshape(self._shape)

    @torch.no_grad()
    def step(self, size: float) -> None:
        """Move against the signs of the gradients, offsets by `size` and factors by a fifth."""
        for values, far, low, high in (
            (self.offsets, size, -self.reach, self.reach),
            (self.factors, size / 5, 0.5, 1.5),
        ):
            if values.grad is not None:
                values.sub_(far * values.grad.sign()).clamp_(low, high)
                values.grad = None

    def state(self) -> tuple[Tensor, Tensor]:
        """Return a copy of the learned values."""
        return self.offsets.detach().clone(), self.factors.detach().clone()

    def restore(self, state: tuple[Tensor, Tensor]) -> None:
        """Restore the values of `state()`."""
        with torch.no_grad():
            self.offsets.copy_(state[0])
            self.factors.copy_(state[1])

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the learned values and ranges."""
        ranges = self.ranges * self.factors.detach()
        values = self.value().detach().reshape(self.weight.shape)
        return self.grid.as_stored(values, ranges), ranges

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Make the layer compute with the learned value inside the context."""
        layer = self.layer
        weight, quantizers = layer._parameters.pop("weight"), layer.quantizers
        layer.quantizers = {**quantizers, "weight": Bypass()}
        layer.__dict__["weight"] = self.value().to(cast(nn.Parameter, weight).dtype)
        try:
            yield
        finally:
            del layer.__dict__["weight"]
            layer._parameters["weight"], layer.quantizers = weight, quantizers


def _ranges(layer: QuantizedModule, grid: WeightGrid, weight: Tensor) -> Tensor:
    """Return the ranges that the layer stores, or else those that it would measure."""
    form = grid.quantizer.scaled
    if form is not None and form.is_stored:
        scales = cast(Tensor, layer.weight_scale).to(weight.dtype)
        reach = scales.reshape(-1, grid.count) * form.integers[1]
        return reach.expand(len(weight), grid.count).clone()
    return grid.largest(weight)


def _steps(grid: WeightGrid, weight: Tensor, ranges: Tensor) -> Tensor:
    """Return the distance from each rounded element to the next value, towards the element."""
    spread = ranges[:, grid.groups]
    rounded = grid.round(weight, spread)
    direction = torch.where(weight < rounded, -1.0, 1.0)
    steps = torch.zeros_like(weight)
    probe = float(weight.abs().amax()) * FINEST
    while probe > 0 and probe < 4 * float(spread.abs().amax()):
        # the first probe beyond half a step is within a whole one: it lands on the neighbour
        distance = (grid.round(rounded + direction * probe, spread) - rounded).abs()
        steps = torch.where(steps == 0, distance, steps)
        probe *= 2
    return steps
