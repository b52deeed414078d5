"""Area of a function by table."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_lut import Lut


@area_model(Lut)
def count_lut(inventory: Inventory, component: Lut) -> None:
    """Add a table that every lane reads."""
    memory = component.memories()[0]
    inventory.rom(memory.words, memory.width, component.source.lanes)
    inventory.registers(1)
    inventory.skid(component.outputs[0].beat_width)
