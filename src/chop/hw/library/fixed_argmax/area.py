"""Area of the choice of the largest element."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_argmax import ArgMax


@area_model(ArgMax)
def count_argmax(inventory: Inventory, component: ArgMax) -> None:
    """Add a comparison and a choice for each pair of each level, their registers and a buffer."""
    width, count = component.source.format.width, component.source.lanes
    for level in range(component.levels):
        pairs, entries = count // 2, (count + 1) // 2
        place_bits = level + 1  # bits that differ between places of this level
        last = level == component.levels - 1
        inventory.carry(width, pairs)
        inventory.add("choice", pairs * (place_bits - 1 + width * (not last)))
        inventory.registers(entries * (place_bits + width * (not last)) + 1)
        count = entries
    inventory.skid(component.output.beat_width)
