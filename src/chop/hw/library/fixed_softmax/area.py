"""Area of a softmax."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_softmax import Softmax
from chop.hw.streams.row_buffer.area import count_row

EXP_BITS = 16
"""Bits of an exponential, EXP_WIDTH in `fixed_softmax.sv`."""
ROOT_BITS = 18
"""Bits of a reciprocal (R_WIDTH)."""
PRODUCT_BITS, PRODUCT_FRAC = 34, 33
"""Bits of an exponential times a reciprocal, and its fractional bits."""
DELAYS = 10
"""Registers of the delay line of an exponential, as fitted; the RTL has 13 (DELAY)."""
FIXED_BITS = 274
"""Registers of the reciprocal, whose widths do not depend on the input: mantissa (4 x 17 bits),
table entry (6 x 16), correction and near-one products, rounded."""
LANE_PRODUCT_BITS, SECOND_TABLE_BITS = 68 + 16, 33
"""Registers beside the multipliers of a lane: two products of 34 bits and an entry; and the product
of two table entries, if there are two tables."""


@area_model(Softmax)
def count_softmax(inventory: Inventory, component: Softmax) -> None:
    """Add the maximum, exponentials by table, their sum, its reciprocal, and a product a lane."""
    width, lanes = component.source.format.width, component.source.lanes
    total = EXP_BITS + (component.source.shape[-1] - 1).bit_length()
    place = (total - 1).bit_length()
    has_two = len(component.tables) == 2
    inventory.path("maximum", lanes * width)
    inventory.add("softmax_max", (2 * lanes + 1) * width)
    inventory.add("softmax_far", lanes * min(width, EXP_BITS))
    inventory.add("softmax_sum", (lanes + 1) * total)
    inventory.add("softmax_shift", total * place)
    inventory.add("softmax_lanes", lanes)
    inventory.add("softmax_mask", lanes * EXP_BITS if component.has_mask else 0)
    inventory.add("softmaxes")
    *tables, reciprocals = (m for m in component.memories() if not m.is_streamed)
    for memory in tables:
        inventory.rom(memory.words, memory.width, lanes)
    inventory.rom(reciprocals.words, reciprocals.width)
    inventory.add("dsp", lanes * (1 + has_two) + 2)  # two in the Newton step of the reciprocal
    lane_bits = 2 * width + DELAYS * EXP_BITS
    inventory.registers(lanes * lane_bits + 2 * width + 7 * place + 2 * total + FIXED_BITS)
    multiplied = LANE_PRODUCT_BITS + SECOND_TABLE_BITS * has_two
    inventory.registers(lanes * multiplied, by_multiplier=True)
    count_row(inventory, component.beats, lanes * (width + component.has_mask), width)
    count_row(inventory, component.beats, lanes * EXP_BITS, ROOT_BITS)
    for _ in range(2):
        inventory.counter(component.beats)
    inventory.sources(component.memories())
    inventory.cast(PRODUCT_BITS, PRODUCT_FRAC, False, component.format, lanes)
    inventory.skid(component.output.beat_width)
