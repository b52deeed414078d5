"""Area of windows that leave whole."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.whole_window import WholeWindow


@area_model(WholeWindow)
def count_whole_window(inventory: Inventory, component: WholeWindow) -> None:
    """Add a shift register over the rows of a window, and a mask of the padding."""
    geometry, bits = component.geometry, component.output.beat_width
    for size in geometry.size:
        inventory.counter(size, extra=1)
    inventory.add("window_pad", bits if any(geometry.padding) else 0)
    inventory.registers(component.cost().register_bits - 2 * bits)
    inventory.skid(bits)
