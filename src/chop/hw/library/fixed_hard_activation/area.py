"""Area of the hard activations."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.arith.golden import Fixed
from chop.hw.library.fixed_divide.area import count_divide
from chop.hw.library.fixed_hard_activation import HardUnary

SIX_BITS = 4
"""Bits of 6 as a signed number, above the fractional bits."""
VALID_BITS = 4
"""Valid bits of the stages before the division and in it."""


@area_model(HardUnary)
def count_hard(inventory: Inventory, component: HardUnary) -> None:
    """Add x + 3, clipped to 0 … 6, multiplied by x for a swish, and divided by six."""
    number, lanes = component.source.format, component.source.lanes
    six = number.frac_width + SIX_BITS
    clip = max(number.signed_width, six) + 1
    _count_clip(inventory, number, lanes)
    if component.is_swish:
        inventory.registers(2 * clip * lanes, by_multiplier=True)
        inventory.add("swish", clip * lanes)
        inventory.multiplier(number.signed_width, six, lanes)
    inventory.registers(component.division.width * lanes + VALID_BITS)
    count_divide(inventory, component.division, lanes)
    inventory.skid(component.outputs[0].beat_width)


def _count_clip(inventory: Inventory, number: Fixed, lanes: int) -> None:
    """Add x + 3 and its comparisons with 0 and 6, without those that no input needs.

    Only the whole bits are added and compared: 3 has no fractional bits, and 6 has 3 whole ones.
    """
    three = 3 << number.frac_width
    whole = max(number.width - number.frac_width, 3) + 1
    is_below, is_above = number.low < -three, number.high > three
    inventory.chain(whole, lanes)
    inventory.chain(whole - 1, lanes * is_above)
    inventory.add("hard_raise", whole * lanes)
    inventory.add("hard_clip", (number.frac_width + 3) * lanes * (is_below or is_above))
    inventory.add("hard_below", (number.frac_width + 3) * lanes * (is_below and is_above))
