"""Area of a division by constants."""

from __future__ import annotations

from chop.hw.area.inventory import BESIDE_PRODUCT, Inventory
from chop.hw.library.fixed_divide import Division


def count_divide(inventory: Inventory, division: Division, lanes: int) -> None:
    """Add `fixed_divide`: a product with a reciprocal, a difference and a cast."""
    width, frac, out = division.width, division.frac_width, division.out
    divisor, is_chosen = max(division.divisors), len(division.divisors) > 1
    if division.is_shift:  # a power of two only moves the point
        inventory.registers(2 * width * lanes)
        inventory.cast(width, frac + divisor.bit_length() - 1, True, out, lanes)
        return
    shift = out.frac_width + 1 - frac
    scaled = max(width + shift, 1) if shift < 0 else width + shift
    raised = scaled + divisor.bit_length() + 1  # bits of the dividend and of the reciprocal
    product = 2 * raised + divisor.bit_length() + 2
    inventory.add("dsp", division.multipliers * lanes + is_chosen)
    inventory.path("divide", raised)
    if division.parts > 1:  # each part is a register; the sum of three or more saves carries
        name = "divide_sums" if division.parts > 2 else "divide_sum"
        inventory.add(name, division.sum_bits * lanes)
        inventory.registers(division.part_bits * lanes, by_multiplier=True)
        inventory.path("divide_parts", division.parts)
    inventory.add("divide_lanes", lanes)
    inventory.add("divide_rest", divisor.bit_length() * lanes)
    # A LUT joins three of the bits that the result drops with the OR so far.
    inventory.add("divide_lost", -(-min(max(-shift, 0), width) // 3) * lanes)
    inventory.registers((raised + 2) * lanes)
    inventory.registers(product * lanes, by_multiplier=True)
    if is_chosen:
        top = 1 << (raised + divisor.bit_length())
        reciprocals = (0, *(-(-top // each) for each in range(1, divisor + 1)))
        inventory.rom(reciprocals, top.bit_length())
        inventory.path("divisor", 1.0)
    # The quotient has three bits more: its sign, the half step and the rest.
    inventory.cast(scaled + 3, out.frac_width + 2, True, out, lanes, beside=BESIDE_PRODUCT)
