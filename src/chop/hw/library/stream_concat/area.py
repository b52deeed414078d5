"""Area of a concatenation."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.stream_concat import Concat


@area_model(Concat)
def count_concat(inventory: Inventory, component: Concat) -> None:
    """Add a count of beats, a multiplexer and the bit that selects the stream."""
    width = component.left.beat_width
    beats = [block // component.left.lanes for block in component.blocks]
    inventory.counter(max(beats), extra=1)
    inventory.add("choice", width)
    inventory.registers(1)
    inventory.skid(width)
    if component.is_swapped and component.constant is not None:
        inventory.skid(width)
    inventory.sources(component.memories())
