"""Area of a convolution."""

from __future__ import annotations

from chop.hw.area.area_model import area_model, count
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_conv import Conv
from chop.hw.library.sliding_window.area import count_window


@area_model(Conv)
def count_conv(inventory: Inventory, layer: Conv) -> None:
    """Add a window and the product behind it."""
    count_window(inventory, layer.geometry, layer.source.beat_width)
    count(inventory, layer.product)
