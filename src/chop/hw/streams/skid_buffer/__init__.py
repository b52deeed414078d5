"""A register slice between two components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chop.hw.design.component import Component, ComponentCost, Mover, Parameter, register
from chop.hw.design.cycle_model import Queue, Twin
from chop.hw.design.samples import WIDE, stream


@register
@dataclass(frozen=True)
class Skid(Mover):
    """Two-entry register slice."""

    module = "skid_buffer"

    def parameters(self) -> Mapping[str, Parameter]:
        return {"DATA_WIDTH": self.stream.beat_width}

    def twins(self) -> list[Twin]:
        return [Queue(2)]

    def cost(self) -> ComponentCost:
        return ComponentCost(register_bits=2 * self.stream.beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [cls(stream(7)), cls(stream(4, lanes=4, number=WIDE)), cls(stream(1))]
