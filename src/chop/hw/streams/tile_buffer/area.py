"""Area of a tile buffer."""

from __future__ import annotations

from chop.hw.area.inventory import Inventory, bits_for

HANDSHAKE_BITS = 5
"""Flip-flops of its control: halves written and read, the count of full halves (2), valid."""


def count_tiles(
    inventory: Inventory, width: int, rows: int, row_beats: int, group: int, repeats: int
) -> None:
    """Add a `tile_buffer` of beats of `width` bits: a memory of two matrices for each group."""
    tiles = max(rows // group * row_beats, 1)
    for _ in range(group):
        inventory.ram(2 << bits_for(tiles), width, name="tiles")
    place = inventory.counter(tiles)
    inventory.counter(tiles)
    inventory.add("tile_buffers")
    inventory.add("tile_place", place)
    inventory.registers(place + HANDSHAKE_BITS)
    for size in (row_beats, group, repeats):
        inventory.counter(size)
