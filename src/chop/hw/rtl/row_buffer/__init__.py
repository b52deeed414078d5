"""What holds a row until a number about all of it is known: part of softmax and of the norms."""

from __future__ import annotations

from typing import Any

from chop.hw.component import Cost
from chop.hw.twin import Bracket, Twin


class RowTwin(Bracket):
    """A `row_buffer`, the pipeline behind it and the skid buffer at its end.

    `wait`: cycles from the last beat of a row until its number lies in the buffer; `latency`:
    registers behind the buffer's memory, its output among them.
    """

    name = "Row"

    def __init__(self, beats: int, wait: int, latency: int) -> None:
        super().__init__(latency)
        self.arguments = (beats, wait, latency)
        self.beats, self.wait = beats, wait
        self.slots = beats + wait
        self.level = self.scalars = self.waiting = self.taken = self.issued = 0

    def step(self, taken: bool, given: bool) -> None:
        issues = self.scalars > 0 and self.count < 2  # a row with a number has beats
        self.advance(issues, given)
        self.level += taken - issues
        self.takes = self.level < self.slots
        self.waiting = self.waiting << 1 | self._ends(taken)
        self.scalars += self.waiting >> (self.wait - 1) & 1
        self.waiting &= (1 << self.wait) - 1
        if issues:
            self.issued += 1
            if self.issued == self.beats:
                self.issued, self.scalars = 0, self.scalars - 1

    def _ends(self, taken: bool) -> bool:
        """Whether the last beat of a row was taken."""
        self.taken += taken
        if self.taken < self.beats:
            return False
        self.taken = 0
        return True


class RowsTwin(Twin):
    """Two `RowTwin`s, one behind the other; with a second operand where `inputs` is 2."""

    name = "Rows"

    def __init__(self, first: Any, second: Any, inputs: int = 1) -> None:
        self.arguments = (tuple(first), tuple(second), inputs)
        self.inputs = inputs
        self.first, self.second = RowTwin(*first), RowTwin(*second)

    def step(self, taken: bool, given: bool) -> None:
        moved = self.first.gives and self.second.takes
        self.first.step(taken, moved)
        self.second.step(moved, given)
        self.takes, self.gives = self.first.takes, self.second.gives


def row_cost(beats: int, wait: int, beat_width: int, scalar_width: int) -> Cost:
    """Memory of a `row_buffer`."""
    slots = beats + wait
    scalars = -(-slots // beats)
    return Cost(memory_bits=slots * beat_width + scalars * scalar_width)
