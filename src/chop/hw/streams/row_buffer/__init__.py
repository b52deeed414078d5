"""Row buffer: a row until its last beat, and a scalar of the row; part of softmax and norms."""

from __future__ import annotations

from chop.hw.design.component import ComponentCost
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process, take


class FrontTwin(Twin):
    """Cycle model of a pipeline into a skid buffer that takes a beat of every input at once."""

    name = "Front"

    def __init__(self, latency: int, inputs: int = 1) -> None:
        self.arguments = (latency, inputs)
        self.latency, self.inputs = latency, inputs

    def process(self) -> Process:
        phases = (take(inputs=tuple(range(self.inputs))),)
        return Process(phases, (0,) * self.inputs, latency=self.latency)


class RowTwin(Twin):
    """Cycle model of a `row_buffer`, the pipeline behind it and the skid buffer at its end.

    `latency`: registers behind the buffer's memory, including its output.
    """

    name = "Row"

    def __init__(self, beats: int, latency: int) -> None:
        self.arguments = (beats, latency)
        self.beats, self.latency = beats, latency

    def process(self) -> Process:
        one = {0: 1}
        first = Phase(needs={0: self.beats}, frees=one, gives=(0,))
        rest = Phase(self.beats - 1, needs=one, frees=one, gives=(0,))
        return Process((first, rest), slots=(self.beats + 1,), latency=self.latency)


def row_cost(beats: int, beat_width: int, scalar_width: int) -> ComponentCost:
    """Return the memory of a `row_buffer` and the registers of the skid buffer before it."""
    width = beat_width + scalar_width
    memory = (beats + 1) * beat_width + 2 * scalar_width
    return ComponentCost(memory_bits=memory, register_bits=2 * width)
