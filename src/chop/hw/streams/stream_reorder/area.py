"""Area of a reordering of elements."""

from __future__ import annotations

from collections.abc import Sequence

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory, bits_for
from chop.hw.streams.stream_reorder import Reorder

HANDSHAKE_BITS = 5
"""Flip-flops of its control: halves written and read, the count of full halves (2), valid."""


@area_model(Reorder)
def count_reorder(inventory: Inventory, component: Reorder) -> None:
    """Add memories of two tensors and tables of the places to read and write."""
    stream = component.source
    lanes, width = stream.lanes, stream.format.lane_width
    address = inventory.counter(stream.beats)
    inventory.counter(component.output.beats)
    for memory in component.memories():
        inventory.rom(memory.words, memory.width)
    inventory.add("reorders")
    inventory.registers(HANDSHAKE_BITS)
    depth = 2 << address
    if component.moves_beats:
        inventory.ram(depth, stream.beat_width, name="reorder")
    else:
        for _ in range(lanes):
            inventory.ram(depth, width, name="reorder")
        for memory in component.memories():
            inventory.add("crossbar", width * choices(memory.words, lanes))
        inventory.registers(lanes * bits_for(lanes))
    inventory.skid(stream.beat_width)


def choices(words: Sequence[int], lanes: int) -> int:
    """Return the two-way choices of a crossbar for one bit of a lane.

    `words`: for each beat, the source of each lane, lane 0 in the low bits. Equal trees of choices
    are counted once: 2**k lanes that are permuted need k choices a lane, not 2**k - 1.
    """
    bits = bits_for(lanes)
    numbers: dict[tuple[tuple[int, ...], int, int], int] = {}

    def chosen(lane: int, bit: int, first: int) -> int:
        """Return the signal that `bit` and the bits below it select from `first` on; -1: none."""
        if bit < 0:
            return first if first < lanes else -1
        low, high = (chosen(lane, bit - 1, first + (half << bit)) for half in (0, 1))
        column = tuple(word >> (lane * bits + bit) & 1 for word in words)
        if column[0]:  # a choice by the inverted bit is the same with both sides swapped
            column, low, high = tuple(1 - b for b in column), high, low
        if high == -1 or low == high or not any(column):
            return low
        if low == -1:
            return high
        return numbers.setdefault((column, low, high), lanes + len(numbers))

    for lane in range(lanes):
        chosen(lane, bits - 1, 0)
    return len(numbers)
