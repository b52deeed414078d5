"""FIFO, for paths of a design that are faster than others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chop.hw.arith.golden import Fixed
from chop.hw.design.component import Component, ComponentCost, Mover, Parameter, register
from chop.hw.design.cycle_model import Queue, Twin
from chop.hw.design.samples import NARROW, stream


@register
@dataclass(frozen=True)
class Fifo(Mover):
    """Queue of `depth` beats."""

    depth: int = 4
    has_head: bool = False
    """True if the oldest beat has a register even in a small queue."""
    module = "fifo"

    def parameters(self) -> Mapping[str, Parameter]:
        sizes = {"DATA_WIDTH": self.stream.beat_width, "DEPTH": self.depth}
        return sizes | ({"HAS_HEAD": True} if self.has_head else {})

    def twins(self) -> list[Twin]:
        return [Queue(self.depth)]

    def cost(self) -> ComponentCost:
        return ComponentCost(memory_bits=self.depth * self.stream.beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(12), 2),
            cls(stream(12, lanes=3), 5),
            cls(stream(6, number=NARROW), 8),
            cls(stream(12), 2, has_head=True),
            cls(stream(12, lanes=3), 5, has_head=True),
            cls(stream(96, lanes=2, number=Fixed(60, 4)), 37),  # block RAM
        ]
