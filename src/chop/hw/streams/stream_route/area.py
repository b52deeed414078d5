"""Areas of the components of a shared block: replay, entry and exit."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.streams.stream_route import LoopEntry, LoopExit, Replay
from chop.hw.streams.tile_buffer.area import count_tiles


@area_model(Replay)
def count_replay(inventory: Inventory, component: Replay) -> None:
    """Add a tile buffer that is read once per pass."""
    beats = component.in_flight * component.stream.beats
    count_tiles(inventory, component.stream.beat_width, beats, 1, 1, component.passes)


@area_model(LoopExit)
def count_exit(inventory: Inventory, component: LoopExit) -> None:
    """Add a count of beats and a skid buffer for each of the two outputs."""
    bits = inventory.counter(component.passes * component.in_flight * component.stream.beats)
    inventory.add("slice_ends", bits)
    inventory.skid(component.stream.beat_width, 2)


@area_model(LoopEntry)
def count_entry(inventory: Inventory, component: LoopEntry) -> None:
    """Add a count of beats and a multiplexer of two streams."""
    inventory.counter(component.passes * component.in_flight * component.stream.beats)
    inventory.add("choice", component.stream.beat_width)
    inventory.skid(component.stream.beat_width)
