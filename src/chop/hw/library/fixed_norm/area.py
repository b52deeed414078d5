"""Area of the row norms."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_norm import Norm
from chop.hw.streams.row_buffer.area import count_row

ROOT_BITS = 18
"""Bits of an inverse root, R_WIDTH in `fixed_norm.sv`."""
LOW_BITS = 17
"""Bits of the low part of a normalised element, which one multiplier takes (LOW_WIDTH)."""
FRAC_BITS = 16
"""Fractional bits of a normalised element."""
ROOT_MULTIPLIERS = 3
"""Products of the Newton step of an inverse root."""
DELAYS = (15, 12, 3, 10)
"""Registers of the delay lines of an element, a sum, the spread and its place, as they were when
the model was made. The RTL has up to 19 now; the fitted coefficient of `ff` has the difference."""
FIXED_BITS = 300
"""Registers of the inverse root, whose widths do not depend on the input: its mantissa (6 x 18
bits), table entry (7 x 16), squares and products, rounded."""
LANE_BITS = 100
"""Registers of a lane whose widths do not depend on the input: product with the root (2 x 36), high
and low part."""


@area_model(Norm)
def count_norm(inventory: Inventory, component: Norm) -> None:
    """Add sums of elements and squares, an inverse root, and a product for each lane."""
    number, lanes, size = component.source.format, component.source.lanes, component.size
    x, growth = number.signed_width, size.bit_length()
    spread = component.u_width
    sums = (x + growth) * component.is_centred
    even = spread + spread % 2
    place = (even - 1).bit_length()
    inventory.add(component.kind)
    inventory.add("norm_sum", (lanes + 1) * sums + (lanes + 1) * (2 * x + growth))
    inventory.path("root", spread)
    inventory.add("norm_root", spread)
    inventory.add("norm_shift", even * place)
    _count_products(inventory, component, x, growth)
    z = LOW_BITS + (growth + 1) // 2
    inventory.add("norm_centre", (x + growth + 1) * lanes)
    inventory.add("norm_place", z * place * lanes)
    w, bias = component.affine.weight_format, component.affine.bias_format
    frac, weighed = FRAC_BITS + w.frac_width, z + w.signed_width
    if component.affine.bias is not None:
        inventory.add("norm_bias", weighed * lanes)
        weighed, frac = weighed + 1, max(frac, bias.frac_width)
    inventory.cast(weighed, frac, True, component.format, lanes)
    amounts = (lanes * number.width, sums, spread, place - 1)
    delayed = sum(delay * bits for delay, bits in zip(DELAYS, amounts, strict=True))
    inventory.registers(delayed + FIXED_BITS)
    inventory.registers(lanes * (5 * (x + growth) + LANE_BITS + 3 * weighed), by_multiplier=True)
    count_row(inventory, component.beats, lanes * number.width, sums + ROOT_BITS + place - 1)
    inventory.sources(component.memories())
    inventory.rom(component.memories()[0].words, FRAC_BITS)
    inventory.counter(component.beats)
    inventory.skid(component.output.beat_width)


def _count_products(inventory: Inventory, component: Norm, x: int, growth: int) -> None:
    """Add squares, products with the root and with the weight, and the Newton step.

    A size that is no power of two multiplies the sum of squares and each element.
    """
    lanes, size, w = component.source.lanes, component.size, component.affine.weight_format
    inventory.multiplier(x, x, lanes)
    inventory.multiplier(x + growth + 1, ROOT_BITS, lanes)
    inventory.multiplier(ROOT_BITS, w.signed_width, lanes)
    inventory.add("norm_high", (growth + 1) // 2 * w.signed_width * lanes)
    inventory.add("dsp", ROOT_MULTIPLIERS)
    if component.is_centred:
        inventory.multiplier(x + growth, x + growth)
    if size & (size - 1):
        inventory.multiplier(2 * x + growth, growth)
        inventory.multiplier(x, growth + 1, lanes)
