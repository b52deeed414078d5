"""Area of leaky rectifiers, with one slope or with streamed slopes (PReLU)."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import BESIDE_PRODUCT, Inventory
from chop.hw.arith.shift_add import signed_digits
from chop.hw.design.component import Unary
from chop.hw.library.fixed_leaky_relu import LeakyRelu, PRelu


@area_model(LeakyRelu)
def count_leaky(inventory: Inventory, component: LeakyRelu) -> None:
    """Add a product with a constant, a multiplexer and a cast."""
    number, lanes = component.source.format, component.source.lanes
    x = number.signed_width
    slope = component.slope.bit_length() + 1
    digits = len(signed_digits(component.slope))
    # The two highest bits of a product in a DSP are equal, which the mapper does not know.
    wide = x + max(slope - (digits == 1), component.slope_frac)
    if number.is_signed and digits > 1:
        inventory.multiplier(x, slope, lanes)
        inventory.add("choice", x * lanes)
    elif number.is_signed:  # only where both shifts overlap; the other bits share a set or reset
        lowest = component.slope_frac
        if component.format.rounding == "floor":
            lowest += max(number.frac_width - component.format.frac_width, 0)
        inventory.add("choice_shift", (max(x - lowest, 0) + 1) * lanes)
    inventory.registers((wide + 1) * lanes + 1)
    _count_rectified(inventory, component, wide, component.slope_frac)


@area_model(PRelu)
def count_prelu(inventory: Inventory, component: PRelu) -> None:
    """Add a product with streamed slopes, a multiplexer, a cast and the memory of slopes."""
    number, lanes, slope = component.source.format, component.source.lanes, component.weight_format
    x = number.signed_width
    wide = x + max(slope.width, slope.frac_width)
    if number.is_signed:
        inventory.multiplier(x, slope.width, lanes)
        inventory.add("choice", wide * lanes)
        inventory.registers(wide * lanes + 1)
        inventory.sources(component.memories())
    else:  # never negative: only the valid bit of the memory remains
        inventory.registers(number.width * lanes + 2)
    _count_rectified(inventory, component, wide, slope.frac_width)


def _count_rectified(inventory: Inventory, component: Unary, wide: int, slope_frac: int) -> None:
    """Add the cast of a leaky rectifier from `wide` bits, and its skid buffer."""
    number, lanes = component.source.format, component.source.lanes
    if number.is_signed:
        frac = number.frac_width + slope_frac
        inventory.cast(wide, frac, True, component.format, lanes, beside=BESIDE_PRODUCT)
    else:  # never negative: the number itself
        inventory.cast(number.width, number.frac_width, False, component.format, lanes)
    inventory.skid(component.outputs[0].beat_width)
