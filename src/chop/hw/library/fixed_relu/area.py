"""Area of the rectifier."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_relu import Relu


@area_model(Relu)
def count_relu(inventory: Inventory, component: Relu) -> None:
    """Add an AND for each bit below the sign; two of them share a LUT."""
    number = component.source.format
    inventory.add("relu", component.source.lanes * (number.width - 1) * number.is_signed)
