"""What the components that move beats are made of."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chop.hw.flow.predict.inventory import CHAINLESS, Inventory, bits_for, trailing_zeros
from chop.hw.flow.predict.products import count_sources, count_tiles
from chop.hw.library.stream_concat import Concat
from chop.hw.streams.fifo import Fifo
from chop.hw.streams.gearbox import Gearbox
from chop.hw.streams.skid_buffer import Skid
from chop.hw.streams.stream_fork import Fork
from chop.hw.streams.stream_reorder import Reorder
from chop.hw.streams.stream_route import LoopEntry, LoopExit, Replay
from chop.hw.streams.stream_slice import Slice

Line = tuple[tuple[int, int], tuple[int, int]]
GEARS = Path(__file__).parent / "gears.json"
"""LUTs of gearboxes at two widths, measured by bench/area_casts.py."""


@functools.cache
def gears() -> dict[tuple[int, int], Line]:
    """By the units that come and go: bits of a unit, and LUTs, of a narrow and a wide one."""
    found: dict[tuple[int, int], Line] = {}
    for into, out, (narrow, wide) in json.loads(GEARS.read_text()):
        found[into, out] = ((narrow[0], narrow[1]), (wide[0], wide[1]))
    return found


def count_skid(inventory: Inventory, component: Skid) -> None:
    """Two registers."""
    inventory.skid(component.stream.beat_width)


def count_fork(inventory: Inventory, component: Fork) -> None:
    """A skid buffer for each branch."""
    inventory.skid(component.stream.beat_width, component.branches)


def count_fifo(inventory: Inventory, component: Fifo) -> None:
    """A memory between two counters; block RAM from 1024 bits on, as its RTL says."""
    depth, width = component.depth, component.stream.beat_width
    is_block = depth > 32 and depth * width >= 1024
    slots = depth - (depth > 1 and (is_block or component.has_head))
    inventory.counter(slots)
    inventory.counter(slots)
    inventory.chain(inventory.counter(depth, extra=1))  # up and down
    if slots < depth:
        inventory.add("fifo_head", width)
        inventory.registers(width)
    inventory.ram(slots, width, name="fifo", is_late=not is_block, is_block=is_block)
    if is_block:
        inventory.add("fifo_ahead", width)
        inventory.add("fifo_blocks")
        inventory.registers(width + 1)


def count_gearbox(inventory: Inventory, component: Gearbox) -> None:
    """Places for the elements of both beats; each takes any of those that come."""
    unit = component.unit
    into, out = component.stream.lanes // unit, component.lanes // unit
    is_even = into % out == 0 or out % into == 0
    places = into + out + (0 if is_even else into)
    width = unit * component.stream.format.lane_width
    inventory.registers(places * width + bits_for(places + 1))
    inventory.path("gear", places)
    known = gears().get((into, out))
    if known:
        (low, few), (high, many) = known
        inventory.add("counted", few + (many - few) / (high - low) * (width - low))
        return
    control = bits_for(places + 1) + 1
    inventory.add("gear_count", control)
    for place in range(places):
        sources = min(into, place + 1) + (place + out < places)
        if sources > 1:
            luts = inventory.fabric.wide_lut(sources + control)
            inventory.add(f"gear_{luts}", width * (luts or sources))
            inventory.add("gear_wide", 0 if luts else width)


def count_slice(inventory: Inventory, component: Slice) -> None:
    """A count of beats, compared with both ends unless they are those of the row."""
    lanes = component.source.lanes
    first, beats = component.first // lanes, component.source.shape[-1] // lanes
    end = first + component.kept // lanes
    bits = inventory.counter(beats, extra=1)
    for at in (first, end % beats):
        if at:
            compared = bits - trailing_zeros(at)
            inventory.add("slice_compares")
            inventory.add("slice_ends", compared)
            inventory.add("counted", 2 * (compared // 2) * (compared > CHAINLESS))
    inventory.skid(component.source.beat_width)


def count_concat(inventory: Inventory, component: Concat) -> None:
    """A count of beats and a choice between two."""
    width = component.left.beat_width
    beats = [block // component.left.lanes for block in component.blocks]
    inventory.counter(max(beats), extra=1)
    inventory.add("choice", width)
    inventory.registers(1)
    inventory.skid(width)
    if component.is_swapped and component.constant is not None:
        inventory.skid(width)
    count_sources(inventory, component.memories())


def count_reorder(inventory: Inventory, component: Reorder) -> None:
    """Memories of two tensors, and tables of where to read and write."""
    stream = component.source
    lanes, width = stream.lanes, stream.format.lane_width
    address = inventory.counter(stream.beats)
    inventory.counter(component.output.beats)
    for memory in component.memories():
        inventory.rom(memory.words, memory.width)
    inventory.add("reorders")
    inventory.registers(5)
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
    """Choices of one in two, for each bit of a crossbar.

    `words`: for each beat, of each lane the one it takes, in the low bits, lane 0 in the lowest.
    Trees of choices that several lanes have are there once: with 2**k lanes that take one another
    it is k for a lane, not 2**k - 1.
    """
    bits = bits_for(lanes)
    found: dict[tuple[tuple[int, ...], int, int], int] = {}

    def chosen(lane: int, bit: int, first: int) -> int:
        """By this bit and those below it; -1: none."""
        if bit < 0:
            return first if first < lanes else -1
        low, high = (chosen(lane, bit - 1, first + (half << bit)) for half in (0, 1))
        column = tuple(word >> (lane * bits + bit) & 1 for word in words)
        if column[0]:  # a choice is that by the opposite bit, turned around
            column, low, high = tuple(1 - b for b in column), high, low
        if high == -1 or low == high or not any(column):
            return low
        if low == -1:
            return high
        return found.setdefault((column, low, high), lanes + len(found))

    for lane in range(lanes):
        chosen(lane, bits - 1, 0)
    return len(found)


def count_replay(inventory: Inventory, component: Replay) -> None:
    """A tile buffer that is read several times."""
    beats = component.in_flight * component.stream.beats
    count_tiles(inventory, component.stream.beat_width, beats, 1, 1, component.passes)


def count_exit(inventory: Inventory, component: LoopExit) -> None:
    """A count of beats and a skid buffer on either way out."""
    bits = inventory.counter(component.passes * component.in_flight * component.stream.beats)
    inventory.add("slice_ends", bits)
    inventory.skid(component.stream.beat_width, 2)


def count_entry(inventory: Inventory, component: LoopEntry) -> None:
    """A count of beats and a choice between two."""
    inventory.counter(component.passes * component.in_flight * component.stream.beats)
    inventory.add("choice", component.stream.beat_width)
    inventory.skid(component.stream.beat_width)


COUNTS: dict[type, Callable[[Inventory, Any], None]] = {
    Skid: count_skid,
    Fork: count_fork,
    Fifo: count_fifo,
    Gearbox: count_gearbox,
    Slice: count_slice,
    Concat: count_concat,
    Reorder: count_reorder,
    Replay: count_replay,
    LoopEntry: count_entry,
    LoopExit: count_exit,
}
"""How each class and its children are counted."""
