"""Area of a skid buffer."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.streams.skid_buffer import Skid


@area_model(Skid)
def count_skid(inventory: Inventory, component: Skid) -> None:
    """Add two words of registers."""
    inventory.skid(component.stream.beat_width)
