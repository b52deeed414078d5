"""Area of the cast from MXINT to fixed point."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.streams.mxint_to_fixed import FromMxint


@area_model(FromMxint)
def count_from_mxint(inventory: Inventory, component: FromMxint) -> None:
    """Add a shift and a cast."""
    number, lanes = component.number, component.source.lanes
    shifted = number.mantissa + number.top
    inventory.add("shift_left", shift_luts(number.mantissa, number.top) * lanes)
    inventory.registers(shifted * lanes + 1)
    inventory.cast(shifted, number.frac_width, True, component.format, lanes, is_loose=True)
    inventory.skid(component.output.beat_width)


def shift_luts(width: int, most: int) -> int:
    """Return the LUTs of a shift to the left by up to `most`: a stage for each bit of the distance.

    Bits that a stage only passes or clears merge into LUTs of the next stage: none for up to two
    stages of a LUT4, five more for each further stage (fitted to netlists of 1 to 5 stages).
    """
    stages = most.bit_length()
    outputs = [min(width + (2 << stage) - 1, width + most) for stage in range(stages)]
    return sum(outputs) - max(5 * stages - 9, 0)
