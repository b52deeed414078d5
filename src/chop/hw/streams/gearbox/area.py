"""Area of a gearbox."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory, bits_for
from chop.hw.streams.gearbox import Gearbox

GearLine = tuple[tuple[int, int], tuple[int, int]]
GEARS = Path(__file__).parent / "gears.json"
"""LUTs of gearboxes on ECP5, measured by bench/area_casts.py."""


@functools.cache
def gears() -> dict[tuple[int, int], GearLine]:
    """Return (bits, LUTs) of a narrow and a wide unit, by the units of both beats."""
    lines: dict[tuple[int, int], GearLine] = {}
    for into, out, (narrow, wide) in json.loads(GEARS.read_text()):
        lines[into, out] = ((narrow[0], narrow[1]), (wide[0], wide[1]))
    return lines


@area_model(Gearbox)
def count_gearbox(inventory: Inventory, component: Gearbox) -> None:
    """Add places for the units of both beats, each with a multiplexer over the units that come.

    Ratios in `gears.json` are interpolated between the two measured widths; LUTs of the others are
    one wide function per bit, which the fitted coefficients `gear_*` weigh by its size.
    """
    unit = component.unit
    into, out = component.stream.lanes // unit, component.lanes // unit
    is_even = into % out == 0 or out % into == 0
    places = into + out + (0 if is_even else into)
    width = unit * component.stream.format.lane_width
    inventory.registers(places * width + bits_for(places + 1))
    inventory.path("gear", places)
    line = gears().get((into, out))
    if line:
        (low, few), (high, many) = line
        inventory.add("counted", few + (many - few) / (high - low) * (width - low))
        return
    control = bits_for(places + 1) + 1
    inventory.add("gear_count", control)
    for place in range(places):
        sources = min(into, place + 1) + (place + out < places)
        if sources > 1:
            luts = inventory.fabric.wide_lut(sources + control)
            inventory.add(f"gear_{luts}", width * (luts or sources))
            inventory.add("gear_wide", 0 if luts else width)
