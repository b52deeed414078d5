"""Area of a batch normalisation."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_batch_norm import BatchNorm


@area_model(BatchNorm)
def count_batch_norm(inventory: Inventory, component: BatchNorm) -> None:
    """Add a product, a sum and a cast for each lane."""
    number, lanes = component.source.format, component.source.lanes
    w, b = component.weight_format, component.bias_format
    product = number.signed_width + w.width
    frac = max(number.frac_width + w.frac_width, b.frac_width)
    shifts = (frac - number.frac_width - w.frac_width, frac - b.frac_width)
    wide = max(product + shifts[0], b.width + shifts[1]) + 1
    inventory.multiplier(number.signed_width, w.width, lanes)
    inventory.registers((product + b.width) * lanes, by_multiplier=True)
    inventory.carry(wide - max(shifts), lanes)
    inventory.registers(wide * lanes + 2)
    inventory.path("sum", wide)
    inventory.cast(wide, frac, True, component.format, lanes, beside=wide)
    inventory.skid(component.outputs[0].beat_width)
    inventory.sources(component.memories())
