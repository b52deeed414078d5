"""Area of the sliding windows of an image."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory, bits_for
from chop.hw.library.sliding_window import Geometry, SlidingWindow


@area_model(SlidingWindow)
def count_sliding_window(inventory: Inventory, component: SlidingWindow) -> None:
    """Add the windows alone."""
    count_window(inventory, component.geometry, component.source.beat_width)


def count_window(inventory: Inventory, geometry: Geometry, width: int) -> None:
    """Add a `sliding_window` of beats of `width` bits: lines in a ring, and places in it.

    Positions and offsets are signed and have a bit to spare, as their declarations in the RTL.
    """
    row_beats = geometry.size[0] * geometry.beats
    slots = geometry.lines * row_beats
    kernel, stride = geometry.kernel, geometry.stride
    position = (max(geometry.size) + sum(kernel) + sum(stride) - 1).bit_length() + 2
    offset = (slots + (kernel[1] + 1) * row_beats + kernel[0] * geometry.beats - 1).bit_length() + 2
    inventory.ram(slots, width)
    place = inventory.counter(slots)
    level = bits_for(slots + 1)
    inventory.chain(level, 3)  # the level plus a beat, less the freed ones, and its comparison
    inventory.chain(offset)  # the comparison with the next beat's place
    for size in (geometry.beats, *kernel):
        inventory.counter(size, extra=1)
    _count_places(inventory, geometry, slots, place, offset)
    moves = [s for s, k in zip((1, 1, *stride), (*kernel, 2, 2), strict=True) if k > 1]
    for step in moves:
        inventory.constant_sum(position, step)
    inventory.add("windows")
    inventory.path("window", place)
    inventory.add("window_level", level)
    inventory.add("window_position", position * len(moves))
    inventory.add("window_outside", position * any(geometry.padding))
    inventory.add("window_pad", width if any(geometry.padding) else 0)
    # Places of the beat, row, window, row of windows and image, and of the next read; offsets and
    # positions of four of them; three valid bits.
    inventory.registers(6 * place + 4 * offset + 4 * position + 3)
    inventory.skid(width)


def _count_places(
    inventory: Inventory, geometry: Geometry, slots: int, place: int, offset: int
) -> None:
    """Add the sums that move places in the ring, and offsets, by a beat, row, window or image."""
    row_beats = geometry.size[0] * geometry.beats
    across, down = geometry.stride[0] * geometry.beats, geometry.stride[1] * row_beats
    rows = [row_beats] * (geometry.kernel[1] > 1)
    for step in (1, *rows, across % slots, down, geometry.size[1] * row_beats % slots):
        if step:
            inventory.constant_sum(place, step)
            inventory.constant_sum(place + 1, step - slots)
            inventory.add("window_place", place)
            inventory.add("window_ring", place * (slots & (slots - 1) > 0))
    for step in (1, *rows, across, down):
        inventory.constant_sum(offset, step)
        inventory.add("window_offset", offset)
