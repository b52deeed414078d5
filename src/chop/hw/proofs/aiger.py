"""And-inverter graphs in the binary AIGER format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Aig:
    """An and-inverter graph; inputs, latches and gates are numbered from 1, in this order.

    A literal is 2 * number + inverted.
    """

    inputs: int
    latches: tuple[bytes, ...]
    """Line of the next state of each latch; all start at 0."""
    outputs: tuple[int, ...]
    ands: bytes
    and_count: int

    @classmethod
    def read(cls, data: bytes) -> Aig:
        """Return the graph of a file without a symbol table."""
        header, _, rest = data.partition(b"\n")
        _, inputs, latches, outputs, ands = (int(word) for word in header.split()[1:6])
        lines = rest.split(b"\n", latches + outputs)
        literals = tuple(int(line) for line in lines[latches:-1])
        return cls(inputs, tuple(lines[:latches]), literals, lines[-1], ands)

    def only(self, output: int) -> Aig:
        """Return the same graph with one output."""
        return replace(self, outputs=(self.outputs[output],))

    def write(self) -> bytes:
        """Return the bytes of the graph's file."""
        counts = (self.inputs, len(self.latches), len(self.outputs), self.and_count)
        header = " ".join(map(str, ("aig", self.inputs + len(self.latches) + counts[3], *counts)))
        lines = [header.encode(), *self.latches, *(b"%d" % o for o in self.outputs)]
        return b"\n".join(lines) + b"\n" + self.ands

    def gates(self) -> Iterator[tuple[int, int]]:
        """Yield the operands of each gate, in order."""
        place = 0
        for number in range(self.and_count):
            result = 2 * (self.inputs + len(self.latches) + 1 + number)
            first, place = _delta(self.ands, place)
            second, place = _delta(self.ands, place)
            yield result - first, result - first - second

    def run(self, frames: Sequence[Sequence[int]]) -> list[tuple[list[int], list[int]]]:
        """Return the latches and the outputs in each cycle, from the inputs of each."""
        gates = list(self.gates())
        following = [int(line.split()[0]) for line in self.latches]
        state, cycles = [0] * len(following), []
        for inputs in frames:
            values = [0, *inputs, *state]
            for a, b in gates:
                values.append((values[a >> 1] ^ (a & 1)) & (values[b >> 1] ^ (b & 1)))
            outputs = [values[o >> 1] ^ (o & 1) for o in self.outputs]
            cycles.append((state, outputs))
            state = [values[n >> 1] ^ (n & 1) for n in following]
        return cycles


def _delta(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits per byte, low ones first, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place
