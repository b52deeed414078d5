"""Components of a block that tensors pass several times: entry, exit, and replay of operands.

`LoopEntry` takes tensors from outside, then those that come back, pass by pass. `LoopExit` sends
tensors back, and out after the last pass. `in_flight` tensors make each pass together; the next
ones enter after their last pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component, ComponentCost, Mover, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process, take
from chop.hw.design.samples import NARROW, stream
from chop.hw.design.stream import Stream


class EntryTwin(Twin):
    """Cycle model: beats of one stream, then of another."""

    name = "Loop entry"

    def __init__(self, first: int, second: int) -> None:
        self.arguments = (first, second)
        self.first, self.second = first, second

    def process(self) -> Process:
        return Process((take(self.first), take(self.second, (1,))), (0, 0))


class RouteTwin(Twin):
    """Cycle model: beats to one skid buffer, then to another."""

    name = "Route"

    def __init__(self, first: int, second: int) -> None:
        self.arguments = (first, second)
        self.first, self.second = first, second

    def process(self) -> Process:
        return Process((take(self.first), take(self.second, gives=(1,))), outputs=2)


class ReplayTwin(Twin):
    """Cycle model: a tensor loads whole and leaves in each pass, while the next one loads."""

    name = "Replay"

    def __init__(self, beats: int, passes: int) -> None:
        self.arguments = (beats, passes)
        self.beats, self.passes = beats, passes

    def process(self) -> Process:
        whole = {0: self.beats}
        repeated = Phase(self.passes * self.beats - 1, needs=whole, gives=(0,))
        phases = (repeated, Phase(needs=whole, frees=whole, gives=(0,)))
        return Process(phases, (2 * self.beats,), depth=1, slides=True)


@dataclass(frozen=True)
class LoopEntry(Mover):
    """Tensors from outside, then `passes` - 1 times those that come back."""

    passes: int = 2
    in_flight: int = 1
    module, name = "stream_concat", "loop_entry"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream, self.stream))
        object.__setattr__(self, "outputs", (self.stream,))

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_WIDTH": self.stream.beat_width,
            "DATA_IN_0_BEATS": self.in_flight * self.stream.beats,
            "DATA_IN_1_BEATS": (self.passes - 1) * self.in_flight * self.stream.beats,
            "IS_SWAPPED": False,
            "WAITS": False,
        }

    def twins(self) -> list[Twin]:
        beats = self.in_flight * self.stream.beats
        return [EntryTwin(beats, (self.passes - 1) * beats)]

    def cost(self) -> ComponentCost:
        return ComponentCost(register_bits=2 * self.stream.beat_width)


@dataclass(frozen=True)
class LoopExit(Mover):
    """Tensors back by port 0, and after the last of `passes` out by port 1."""

    passes: int = 2
    in_flight: int = 1
    module, name = "stream_route", "loop_exit"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        object.__setattr__(self, "outputs", (self.stream, self.stream))

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_WIDTH": self.stream.beat_width,
            "FIRST_BEATS": (self.passes - 1) * self.in_flight * self.stream.beats,
            "SECOND_BEATS": self.in_flight * self.stream.beats,
        }

    def twins(self) -> list[Twin]:
        beats = self.in_flight * self.stream.beats
        return [RouteTwin((self.passes - 1) * beats, beats)]

    def cost(self) -> ComponentCost:
        return ComponentCost(register_bits=4 * self.stream.beat_width)


@register
@dataclass(frozen=True)
class Replay(Component):
    """Operands that every pass reads: two tensors in block RAM, each given `passes` times."""

    stream: Stream
    passes: int
    in_flight: int = 1
    module, name = "tile_buffer", "stream_replay"
    has_sums = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        shape = (self.passes, *self.stream.shape)
        object.__setattr__(self, "outputs", (replace(self.stream, shape=shape),))

    def golden(self, *data: Ints) -> Ints:
        return np.repeat(data[0][:, None], self.passes, axis=1)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_WIDTH": self.stream.beat_width,
            "ROWS": self.in_flight * self.stream.beats,
            "ROW_BEATS": 1,
            "GROUP": 1,
            "REPEATS": self.passes,
            "GROUPS_FIRST": False,
        }

    def twins(self) -> list[Twin]:
        return [ReplayTwin(self.in_flight * self.stream.beats, self.passes)]

    def cost(self) -> ComponentCost:
        elements = 2 * self.in_flight * self.stream.elements
        return ComponentCost(memory_bits=elements * self.stream.format.width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [cls(stream(3, 4, lanes=2), 2), cls(stream(5, number=NARROW), 3), cls(stream(1), 2)]
