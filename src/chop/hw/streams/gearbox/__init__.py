"""Gearbox between components of different parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chop.hw.design.component import Component, ComponentCost, Mover, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BYTE, NARROW, WIDE, stream


class GearboxTwin(Twin):
    """Cycle model: a count of elements, in units that divide both beats."""

    name = "Gearbox"

    def __init__(self, in_units: int, out_units: int) -> None:
        self.arguments = (in_units, out_units)
        self.in_units, self.out_units = in_units, out_units
        is_even = in_units % out_units == 0 or out_units % in_units == 0
        capacity = in_units + out_units + (0 if is_even else in_units)
        self.capacity = capacity

    def process(self) -> Process:
        beat = {0: self.out_units}
        phases = (Phase(needs=beat, frees=beat, gives=(0,)),)
        return Process(phases, slots=(self.capacity,), depth=0, grains=(self.in_units,))


@register
@dataclass(frozen=True)
class Gearbox(Mover):
    """The same elements, `lanes` per beat."""

    lanes: int = 1
    module = "gearbox"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        object.__setattr__(self, "outputs", (replace(self.stream, lanes=self.lanes),))

    @property
    def unit(self) -> int:
        """Elements that always move together."""
        return math.gcd(self.stream.lanes, self.lanes)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.stream.format.width,
            "DATA_IN_0_PARALLELISM_DIM_0": self.stream.lanes,
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "UNIT": self.unit,
        }

    def twins(self) -> list[Twin]:
        return [GearboxTwin(self.stream.lanes // self.unit, self.lanes // self.unit)]

    def cost(self) -> ComponentCost:
        return ComponentCost(
            register_bits=self.stream.format.width * (self.stream.lanes + self.lanes)
        )

    @classmethod
    def cases(cls) -> Sequence[Component]:
        lanes = ((1, 4, BYTE), (4, 1, BYTE), (2, 3, NARROW), (6, 4, BYTE), (3, 3, WIDE))
        return [cls(stream(12, lanes=a, number=n), b) for a, b, n in (*lanes, (12, 2, WIDE))]
