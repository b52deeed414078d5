"""Area of a piecewise linear function."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_piecewise import Piecewise


@area_model(Piecewise)
def count_piecewise(inventory: Inventory, component: Piecewise) -> None:
    """Add a table of lines, a product and a sum; a stage has a register for each operand."""
    memory, lanes = component.memories()[0], component.source.lanes
    base, slope = component.widths
    low = component.lines.low_bits
    product = slope + low + 1
    wide = max(product, base) + 1
    inventory.rom(memory.words, memory.width, lanes)
    inventory.multiplier(slope, low + 1, lanes)
    inventory.carry(wide, lanes)
    inventory.registers(base * lanes + 2)
    inventory.registers((2 * low + base + slope + product + wide) * lanes + 2, by_multiplier=True)
    inventory.cast(wide, component.lines.frac_width, True, component.format, lanes, beside=wide)
    inventory.skid(component.outputs[0].beat_width)
