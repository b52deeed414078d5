"""Area of a row buffer."""

from __future__ import annotations

from chop.hw.area.inventory import Inventory

HANDSHAKE_BITS = 5
"""Flip-flops of its control: scalars written and read, the count of rows (2), valid."""


def count_row(inventory: Inventory, beats: int, width: int, scalar: int) -> None:
    """Add a `row_buffer` of `beats` beats of `width` bits, and the skid buffer before it.

    It has two scalars, places to write and read, beats that come and leave, and its level.
    """
    inventory.skid(width + scalar)
    count_row_memory(inventory, beats, width, scalar)
    inventory.add("row_buffers")
    inventory.registers(HANDSHAKE_BITS)


def count_row_memory(inventory: Inventory, beats: int, width: int, scalar: int) -> None:
    """Add the memories of a row and of two scalars, and their counters."""
    inventory.ram(beats + 1, width, name="row")
    inventory.ram(2, scalar, name="row")
    for size in (beats + 1, beats + 1, beats, beats):
        inventory.counter(size)
    inventory.counter(beats + 1, extra=1)
