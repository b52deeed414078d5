"""Area of a cast between two components."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.streams.stream_cast import Cast


@area_model(Cast)
def count_cast(inventory: Inventory, component: Cast) -> None:
    """Add a cast without a register."""
    number, lanes = component.source.format, component.source.lanes
    inventory.cast(
        number.width, number.frac_width, number.is_signed, component.format, lanes, into_skid=False
    )
