"""The decisions of a plan along one mesh axis: for each value, the ways to make it and their cost.

What a way costs by itself (arithmetic, memory) is a number; what it costs to read a value that
was made in another layout depends on both, and is asked of `Variable.reading`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from chop.distributed.cost import (
    TRAINING_COPIES,
    collective_seconds,
    compute_seconds,
    reshard,
)
from chop.distributed.layouts import Layout, Use, local_shape
from chop.distributed.mesh import Axis, Mesh
from chop.distributed.program import Program, Value
from chop.distributed.strategies import Strategy

Chosen = Mapping[str, Strategy]
"""Value -> how it is made, along one axis."""


@dataclass(frozen=True)
class Price:
    """Seconds and bytes on one device."""

    seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class PricedStrategy:
    """One way to make a value: what it reads how, and what that costs by itself."""

    strategy: Strategy
    uses: tuple[tuple[str, Use], ...]
    price: Price


@dataclass(frozen=True)
class Variable:
    """A value whose layout is to be decided."""

    value: Value
    axis: Axis
    training: bool
    choices: tuple[PricedStrategy, ...]

    @property
    def name(self) -> str:
        """The name of the value."""
        return self.value.name

    @property
    def layouts(self) -> list[Layout]:
        """The layouts the value may be made in, each once."""
        return list(dict.fromkeys(c.strategy.result for c in self.choices))

    def reading(self, layout: Layout, use: Use) -> Price:
        """What it costs to read the value, made as `layout`, as `use`."""
        seconds = sum(seconds for _, seconds in self.collectives(layout, use))
        is_copied = self.training and use.layout != layout  # kept for the backward pass
        copy = local_bytes(self.value, use.layout, self.axis.devices) if is_copied else 0
        return Price(seconds, copy)

    def collectives(self, layout: Layout, use: Use) -> list[tuple[str, float]]:
        """The collectives that reading takes, with their seconds; one on each tensor of a tuple."""
        names = reshard(layout, use, has_gradient=self.training and self.value.has_gradient)
        sizes = [self.value.itemsize * math.prod(shape) for shape in self.value.call.results]
        pairs = product(names, sizes)
        return [(name, collective_seconds(name, size, self.axis)) for name, size in pairs]


def local_bytes(value: Value, layout: Layout, devices: int) -> int:
    """Bytes of the part of `value` that one device holds."""
    if not value.call.results:
        return 0
    whole, part = value.call.result, local_shape(value.call.result, [(layout, devices)])
    return value.size if whole == part else value.size // devices


def variables(
    program: Program, mesh: Mesh, index: int, others: Mapping[int, Chosen], *, training: bool
) -> list[Variable]:
    """The decisions along axis `index`, given those made along `others`."""
    axis = mesh.axis(index)
    made = []
    for value in program.values:
        fixed = [(chosen[value.name], mesh.shape[i]) for i, chosen in others.items()]
        local = value.localised(fixed)
        choices = [priced(local, s, mesh, axis, training) for s in local.layouts(axis.devices)]
        made.append(Variable(local, axis, training, tuple(choices)))
    return made


def priced(
    value: Value, strategy: Strategy, mesh: Mesh, axis: Axis, training: bool
) -> PricedStrategy:
    """`strategy` for `value`, with what it reads and its price."""
    uses = dict.fromkeys((r.value, strategy.use(r.operand)) for r in value.references)
    held = local_bytes(value, strategy.result, axis.devices)
    return PricedStrategy(
        strategy,
        tuple(uses),
        Price(_seconds(value, strategy, mesh, axis, training), _bytes(value, held, training)),
    )


def _bytes(value: Value, held: int, training: bool) -> int:
    """Memory of one device: parameters with their copies; in training every activation."""
    if value.is_parameter:
        return held * (TRAINING_COPIES if training and value.has_gradient else 1)
    return held if training and not value.is_view else 0


def _seconds(value: Value, strategy: Strategy, mesh: Mesh, axis: Axis, training: bool) -> float:
    if value.is_parameter or value.is_view or not value.references:
        return 0.0
    devices = axis.devices
    moved = local_bytes(value, strategy.result, devices)
    for name, size in value.operand_bytes().items():
        is_whole = strategy.operands.get(name, "R") in ("R", "P")
        moved += size if is_whole else size // devices
    if value.op.reads_rows:  # of its table it reads the rows it gives
        moved = 2 * local_bytes(value, strategy.result, devices)
    flops = value.flops() / (devices if strategy.is_split else 1)
    return compute_seconds(flops, moved, mesh, training=training and value.has_gradient)
