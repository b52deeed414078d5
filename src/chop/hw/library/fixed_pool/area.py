"""Areas of the poolings."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_divide.area import count_divide
from chop.hw.library.fixed_pool import AvgPool, MaxPool
from chop.hw.library.sliding_window.area import count_window


@area_model(MaxPool)
def count_max_pool(inventory: Inventory, component: MaxPool) -> None:
    """Add a window and the larger of two elements."""
    stream, geometry = component.source, component.geometry
    count_window(inventory, geometry, stream.beat_width)
    _count_channels(inventory, geometry.beats, stream.beat_width, component.area)
    inventory.add("maximum", stream.beat_width)
    inventory.skid(component.outputs[0].beat_width)


def _count_channels(inventory: Inventory, beats: int, width: int, area: int) -> None:
    """Add the memory of the result so far of each channel, while a window passes."""
    inventory.ram(beats, width, name="kept", is_late=True)
    inventory.registers(width)
    inventory.counter(beats)
    inventory.counter(area, extra=1)


@area_model(AvgPool)
def count_avg_pool(inventory: Inventory, component: AvgPool) -> None:
    """Add a window, a sum and a division.

    Without padding in its means, it also counts the pixels that lie inside the image.
    """
    stream, geometry = component.source, component.geometry
    sum_bits = stream.format.signed_width + (component.area - 1).bit_length()
    count_window(inventory, geometry, stream.beat_width)
    _count_channels(inventory, geometry.beats, sum_bits * stream.lanes, component.area)
    inventory.add("pool_sum", sum_bits * stream.lanes)
    if not component.counts_padding:
        position = (sum(geometry.size) + sum(geometry.kernel)).bit_length() + 2
        inside = sum(geometry.kernel).bit_length() + component.area.bit_length()
        inventory.add("pool_inside", position)
        inventory.registers(2 * position + inside)
    count_divide(inventory, component.division, stream.lanes)
    inventory.registers(2)
    inventory.skid(component.outputs[0].beat_width)
