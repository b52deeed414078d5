"""A block that tensors pass several times: its way in, its way out, and what is read in each pass.

`LoopEntry` takes tensors from outside and then, pass by pass, what came back; `LoopExit` sends
tensors back, and on after the last pass. `in_flight` tensors make each pass one behind the other;
the next ones enter behind the last pass of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component, Cost, Mover, Parameter, register
from chop.hw.design.process import Phase, Process, take
from chop.hw.design.samples import NARROW, stream
from chop.hw.design.stream import Stream
from chop.hw.design.twin import Twin


class EntryTwin(Twin):
    """Beats of one stream, then of another."""

    name = "Loop entry"

    def __init__(self, first: int, second: int) -> None:
        self.arguments = (first, second)
        self.first, self.second = first, second

    def process(self) -> Process:
        return Process((take(self.first), take(self.second, (1,))), (0, 0))


class RouteTwin(Twin):
    """Beats to one skid buffer, then to another."""

    name = "Route"

    def __init__(self, first: int, second: int) -> None:
        self.arguments = (first, second)
        self.first, self.second = first, second

    def process(self) -> Process:
        return Process((take(self.first), take(self.second, gives=(1,))), outputs=2)


class ReplayTwin(Twin):
    """A whole tensor in, then the beats of all passes; the next tensor loads meanwhile."""

    name = "Replay"

    def __init__(self, beats: int, passes: int) -> None:
        self.arguments = (beats, passes)
        self.beats, self.passes = beats, passes

    def process(self) -> Process:
        whole = {0: self.beats}
        given = Phase(self.passes * self.beats - 1, needs=whole, gives=(0,))
        phases = (given, Phase(needs=whole, frees=whole, gives=(0,)))
        return Process(phases, (2 * self.beats,), depth=1, slides=True)


@dataclass(frozen=True)
class LoopEntry(Mover):
    """Tensors from outside, then `passes` - 1 times what comes back; streams are of one pass."""

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

    def cost(self) -> Cost:
        return Cost(register_bits=2 * self.stream.beat_width)


@dataclass(frozen=True)
class LoopExit(Mover):
    """Tensors go back, by port 0, and after the last of `passes` on, by port 1."""

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

    def cost(self) -> Cost:
        return Cost(register_bits=4 * self.stream.beat_width)


@register
@dataclass(frozen=True)
class Replay(Component):
    """Tensors that every pass reads: kept in block RAM, twice, and given `passes` times."""

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

    def cost(self) -> Cost:
        kept = 2 * self.in_flight * self.stream.elements
        return Cost(memory_bits=kept * self.stream.format.width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [cls(stream(3, 4, lanes=2), 2), cls(stream(5, number=NARROW), 3), cls(stream(1), 2)]
