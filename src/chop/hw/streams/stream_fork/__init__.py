"""Fork: one stream for several consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chop.hw.design.component import Component, ComponentCost, Mover, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Process, take
from chop.hw.design.samples import NARROW, stream


class ForkTwin(Twin):
    """One skid buffer per branch, loaded together."""

    name = "Fork"

    def __init__(self, branches: int) -> None:
        self.arguments = (branches,)
        self.branches = branches

    def process(self) -> Process:
        return Process((take(gives=tuple(range(self.branches))),), outputs=self.branches)


@register
@dataclass(frozen=True)
class Fork(Mover):
    """The same beats for `branches` consumers."""

    branches: int = 2
    module = "stream_fork"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        object.__setattr__(self, "outputs", (self.stream,) * self.branches)

    def parameters(self) -> Mapping[str, Parameter]:
        return {"DATA_WIDTH": self.stream.beat_width, "BRANCHES": self.branches}

    def twins(self) -> list[Twin]:
        return [ForkTwin(self.branches)]

    def cost(self) -> ComponentCost:
        return ComponentCost(register_bits=2 * self.branches * self.stream.beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [cls(stream(8, lanes=2), 2), cls(stream(5, number=NARROW), 3)]
