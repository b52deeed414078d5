"""Area of the cast from fixed point to MXINT."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.arith.golden import Fixed
from chop.hw.streams.fixed_to_mxint import ToMxint
from chop.hw.streams.row_buffer.area import count_row_memory

CONTROL_BITS = 8
"""Flip-flops of its control: valid bits of the stages, halves, and the count of blocks."""


@area_model(ToMxint)
def count_to_mxint(inventory: Inventory, component: ToMxint) -> None:
    """Add the search for the highest bit of a block, and shifts by it.

    A row buffer without a skid buffer holds the block; its scalar has the bits seen in the block.
    """
    stream, number = component.source, component.format
    width, lanes = stream.format.width, stream.lanes
    beats, blocks, _ = component.block_beats
    shifted = max(stream.format.signed_width, component.places.highest + 2)
    count_row_memory(inventory, beats, stream.beat_width, width)
    inventory.counter(blocks)
    inventory.counter(blocks)
    inventory.add("block_seen", width * (lanes + 1))
    inventory.add("block_negate", width * lanes * stream.format.is_signed)
    inventory.add("block_place", width)
    inventory.add("shift", shifted * lanes * max(number.top, 1).bit_length())
    inventory.registers(width + 2 * stream.beat_width + 2 * number.shared_width + CONTROL_BITS)
    inventory.registers(shifted * lanes)
    dropped = max(component.places.highest + 2 - number.mantissa, 0)
    result = Fixed(number.mantissa, 0, narrow=True, rounding=number.rounding)
    inventory.cast(shifted, dropped, True, result, lanes, is_loose=True)
    inventory.skid(component.output.beat_width)
