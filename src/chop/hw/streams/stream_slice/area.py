"""Area of a slice of a stream."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import CHAINLESS, Inventory, trailing_zeros
from chop.hw.streams.stream_slice import Slice


@area_model(Slice)
def count_slice(inventory: Inventory, component: Slice) -> None:
    """Add a count of beats and a comparison with each end that is not an end of the row.

    A comparator takes a carry cell for two bits: two LUTs, where it is long enough for a chain.
    """
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
