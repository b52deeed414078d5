"""Decisions of a plan along one mesh axis: for each value, its strategies and their cost.

Arithmetic and memory of a strategy are constants (`PricedStrategy.price`). The cost to read a value
depends on the layouts on both sides (`Variable.reading`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from chop.distributed.cost import TRAINING_COPIES, collective_seconds, compute_seconds, reshard
from chop.distributed.layouts import Layout, Use, local_shape, sharded_dim
from chop.distributed.mesh import Axis, Mesh
from chop.distributed.program import Program, ProgramValue
from chop.distributed.strategies import Strategy

Chosen = Mapping[str, Strategy]
"""Strategy of each value along one axis."""


@dataclass(frozen=True)
class Price:
    """Seconds and bytes on one device."""

    seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class PricedStrategy:
    """Strategy of a value, with the values it reads and their uses, and its own price."""

    strategy: Strategy
    uses: tuple[tuple[str, Use], ...]
    price: Price


@dataclass(frozen=True)
class Variable:
    """Value whose layout is to be decided."""

    value: ProgramValue
    axis: Axis
    training: bool
    choices: tuple[PricedStrategy, ...]

    @property
    def name(self) -> str:
        """Name of the value."""
        return self.value.name

    @property
    def layouts(self) -> list[Layout]:
        """Possible layouts of the value, each once."""
        return list(dict.fromkeys(c.strategy.result for c in self.choices))

    def reading(self, layout: Layout, use: Use) -> Price:
        """Return the price to read the value, stored as `layout`, as `use`."""
        seconds = sum(seconds for _, seconds in self.collectives(layout, use))
        is_copied = self.training and use.layout != layout  # saved for the backward pass
        copy = local_bytes(self.value, use.layout, self.axis.devices) if is_copied else 0
        return Price(seconds, copy)

    def collectives(self, layout: Layout, use: Use) -> list[tuple[str, float]]:
        """Return the collectives of a reading with their seconds, one per tensor of a tuple."""
        names = reshard(layout, use, has_gradient=self.training and self.value.has_gradient)
        sizes = [self.value.itemsize * math.prod(shape) for shape in self.value.call.results]
        pairs = product(names, sizes)
        return [(name, collective_seconds(name, size, self.axis)) for name, size in pairs]


def local_bytes(value: ProgramValue, layout: Layout, devices: int) -> int:
    """Return the bytes of `value` on one device."""
    if not value.call.results:
        return 0
    whole, part = value.call.result, local_shape(value.call.result, [(layout, devices)])
    return value.size if whole == part else value.size // devices


def variables(
    program: Program,
    mesh: Mesh,
    index: int,
    others: Mapping[int, Chosen],
    *,
    training: bool,
    chosen: Chosen | None = None,
) -> list[Variable]:
    """Return the decisions along axis `index`, given those along the `others`.

    `chosen`: the strategies along `index`, if they are fixed already.
    """
    axis = mesh.axis(index)
    decisions = []
    for value in program.values:
        local = value.localised([(c[value.name], mesh.shape[i]) for i, c in others.items()])
        strategies = [chosen[value.name]] if chosen is not None else local.layouts(axis.devices)
        choices = tuple(_priced(local, s, mesh, axis, training) for s in strategies)
        decisions.append(Variable(local, axis, training, choices))
    return decisions


def _priced(
    value: ProgramValue, strategy: Strategy, mesh: Mesh, axis: Axis, training: bool
) -> PricedStrategy:
    uses = dict.fromkeys((r.value, strategy.use(r.operand)) for r in value.references)
    size = local_bytes(value, strategy.result, axis.devices)
    if value.is_parameter:
        size *= TRAINING_COPIES if training and value.has_gradient else 1
    elif value.is_view or not training:  # training stores every activation
        size = 0
    return PricedStrategy(
        strategy, tuple(uses), Price(_seconds(value, strategy, mesh, axis, training), size)
    )


def _seconds(
    value: ProgramValue, strategy: Strategy, mesh: Mesh, axis: Axis, training: bool
) -> float:
    if value.is_parameter or value.is_view or not value.references:
        return 0.0
    devices = axis.devices
    moved = local_bytes(value, strategy.result, devices)
    if value.op.reads_rows:  # it reads only the rows of its table that it returns
        moved *= 2
    else:
        for name, size in value.operand_bytes().items():
            is_whole = sharded_dim(strategy.operands.get(name, "R")) is None
            moved += size if is_whole else size // devices
    flops = value.flops() / (devices if strategy.is_split else 1)
    return compute_seconds(flops, moved, mesh, training=training and value.has_gradient)
