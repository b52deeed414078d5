"""Area of a fork."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.streams.stream_fork import Fork


@area_model(Fork)
def count_fork(inventory: Inventory, component: Fork) -> None:
    """Add a skid buffer for each branch."""
    inventory.skid(component.stream.beat_width, component.branches)
