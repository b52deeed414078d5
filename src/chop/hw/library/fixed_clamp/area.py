"""Area of clipping to bounds."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_clamp import Clamp


@area_model(Clamp)
def count_clamp(inventory: Inventory, component: Clamp) -> None:
    """Add a comparison with each bound, the choice, a cast and a skid buffer."""
    number, lanes = component.source.format, component.source.lanes
    bounds = [b for b in (component.least, component.most) if b is not None]
    inventory.carry(number.signed_width, lanes * len(bounds))
    inventory.add("choice", component.format.width * lanes)
    inventory.cast(number.signed_width, number.frac_width, True, component.format, lanes)
    inventory.skid(component.output.beat_width)
