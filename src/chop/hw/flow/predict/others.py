"""What the components that do not multiply by weights are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chop.hw.arith.golden import Fixed
from chop.hw.design.component import Component
from chop.hw.flow.predict import streams
from chop.hw.flow.predict.arithmetic import (
    BESIDE_PRODUCT,
    count_batch_norm,
    count_binary,
    count_leaky,
    count_prelu,
    count_with_constant,
)
from chop.hw.flow.predict.inventory import Inventory, bits_for, trailing_zeros
from chop.hw.flow.predict.products import count_sources, count_window
from chop.hw.library.fixed_arithmetic import Binary, WithConstant
from chop.hw.library.fixed_batch_norm import BatchNorm
from chop.hw.library.fixed_divide import Division
from chop.hw.library.fixed_embedding import Embedding
from chop.hw.library.fixed_hard_activation import HardUnary
from chop.hw.library.fixed_leaky_relu import LeakyRelu, PRelu
from chop.hw.library.fixed_lut import Lut
from chop.hw.library.fixed_norm import Norm
from chop.hw.library.fixed_piecewise import Piecewise
from chop.hw.library.fixed_pool import AvgPool, MaxPool
from chop.hw.library.fixed_relu import Relu
from chop.hw.library.fixed_softmax import Softmax
from chop.hw.library.sliding_window import SlidingWindow
from chop.hw.library.whole_window import WholeWindow
from chop.hw.streams.fixed_to_mxint import ToMxint
from chop.hw.streams.mxint_to_fixed import FromMxint
from chop.hw.streams.stream_cast import Cast


def count_nothing(inventory: Inventory, component: Component) -> None:
    """Wires."""


def count_default(inventory: Inventory, component: Component) -> None:
    """A component that nobody counted: what it says of itself."""
    cost = component.cost()
    inventory.registers(cost.register_bits)
    inventory.add("unknown", cost.register_bits)
    inventory.add("dsp", cost.multipliers)
    for memory in component.memories():
        inventory.rom(memory.words, memory.width)


def count_cast(inventory: Inventory, component: Cast) -> None:
    """Rounding and range."""
    number = component.source.format
    inventory.cast(
        number.width,
        number.frac_width,
        number.is_signed,
        component.format,
        component.source.lanes,
        into_skid=False,
    )


def count_relu(inventory: Inventory, component: Relu) -> None:
    """Half a LUT for each bit but the sign."""
    number = component.source.format
    inventory.add("relu", component.source.lanes * (number.width - 1) * number.is_signed)


def count_divide(inventory: Inventory, division: Division, lanes: int) -> None:
    """`fixed_divide`: a product with a reciprocal, a difference and a cast."""
    width, frac, out = division.width, division.frac_width, division.out
    divisor, chosen = max(division.divisors), len(division.divisors) > 1
    if division.is_shift:  # another place for the point
        inventory.registers(2 * width * lanes)
        inventory.cast(width, frac + divisor.bit_length() - 1, True, out, lanes)
        return
    shift = out.frac_width + 1 - frac
    scaled = max(width + shift, 1) if shift < 0 else width + shift
    raised = scaled + divisor.bit_length() + 1
    product = 2 * raised + divisor.bit_length() + 2
    inventory.add("dsp", division.multipliers * lanes + chosen)
    inventory.path("divide", raised)
    if division.parts > 1:  # each a register; they are added
        several = "divide_sums" if division.parts > 2 else "divide_sum"  # saved carries, or none
        inventory.add(several, division.sum_bits * lanes)
        inventory.registers(division.part_bits * lanes, by_multiplier=True)
        inventory.path("divide_parts", division.parts)
    inventory.add("divide_lanes", lanes)
    inventory.add("divide_rest", divisor.bit_length() * lanes)
    inventory.add("divide_lost", -(-min(max(-shift, 0), width) // 3) * lanes)
    inventory.registers((raised + 2) * lanes)
    inventory.registers(product * lanes, by_multiplier=True)
    if chosen:
        top = 1 << (raised + divisor.bit_length())
        reciprocals = (0, *(-(-top // each) for each in range(1, divisor + 1)))
        inventory.rom(reciprocals, top.bit_length())
        inventory.path("divisor", 1.0)
    inventory.cast(scaled + 3, out.frac_width + 2, True, out, lanes, beside=BESIDE_PRODUCT)


def count_hard(inventory: Inventory, component: HardUnary) -> None:
    """Raised, clipped, multiplied, divided by six."""
    number, lanes = component.source.format, component.source.lanes
    six = number.frac_width + 4
    clip = max(number.signed_width, six) + 1
    _count_clip(inventory, number, lanes)
    if component.is_swish:
        inventory.registers(2 * clip * lanes, by_multiplier=True)
        inventory.add("swish", clip * lanes)
        inventory.multiplier(number.signed_width, six, lanes)
    inventory.registers(component.division.width * lanes + 4)
    count_divide(inventory, component.division, lanes)
    inventory.skid(component.outputs[0].beat_width)


def _count_clip(inventory: Inventory, number: Fixed, lanes: int) -> None:
    """x + 3 held between 0 and 6; what is in between in any case is not looked at."""
    three = 3 << number.frac_width
    whole = max(number.width - number.frac_width, 3) + 1
    is_below, is_above = number.low < -three, number.high > three
    inventory.chain(whole, lanes)
    inventory.chain(whole - 1, lanes * is_above)
    inventory.add("hard_raise", whole * lanes)
    inventory.add("hard_clip", (number.frac_width + 3) * lanes * (is_below or is_above))
    inventory.add("hard_below", (number.frac_width + 3) * lanes * (is_below and is_above))


def count_lut(inventory: Inventory, component: Lut) -> None:
    """A table that every lane reads."""
    memory = component.memories()[0]
    inventory.rom(memory.words, memory.width, component.source.lanes)
    inventory.registers(1)
    inventory.skid(component.outputs[0].beat_width)


def count_piecewise(inventory: Inventory, component: Piecewise) -> None:
    """A table of lines, a product and a sum."""
    memory, lanes = component.memories()[0], component.source.lanes
    base, slope = component.widths
    low = component.lines.low_bits
    wide = max(slope + low + 1, base) + 1
    inventory.rom(memory.words, memory.width, lanes)
    inventory.multiplier(slope, low + 1, lanes)
    inventory.carry(wide, lanes)
    product = slope + low + 1
    inventory.registers(base * lanes + 2)
    inventory.registers((2 * low + base + slope + product + wide) * lanes + 2, by_multiplier=True)
    inventory.cast(wide, component.lines.frac_width, True, component.format, lanes, beside=wide)
    inventory.skid(component.outputs[0].beat_width)


def count_embedding(inventory: Inventory, component: Embedding) -> None:
    """A table and an address."""
    memory = component.memories()[0]
    rows, beats = component.table.shape[0], component.table.shape[1] // component.lanes
    bits = component.source.beat_width
    inventory.skid(bits)
    inventory.rom(memory.words, memory.width)
    inventory.counter(beats)
    if beats & (beats - 1):
        inventory.add("embedding_address", bits_for(len(memory.words)))
        inventory.path("address", bits_for(len(memory.words)))
    if rows < 1 << bits:  # a number past the last row
        inventory.constant_sum(bits, rows)
        inventory.path("bound", bits)
        inventory.add("embedding_bound", bits - trailing_zeros(rows))
    inventory.registers(1)
    inventory.skid(component.output.beat_width)


def count_row(inventory: Inventory, beats: int, width: int, scalar: int) -> None:
    """`row_buffer`, with the skid buffer before it."""
    inventory.skid(width + scalar)
    inventory.ram(beats + 1, width, name="row")
    inventory.ram(2, scalar, name="row")
    for size in (beats + 1, beats + 1, beats, beats):
        inventory.counter(size)
    inventory.counter(beats + 1, extra=1)
    inventory.add("row_buffers")
    inventory.registers(5)


def count_norm(inventory: Inventory, component: Norm) -> None:
    """Sums of elements and squares, an inverse root, and a product for each lane."""
    told: Mapping[str, Any] = component.parameters()
    number, lanes, size = component.source.format, component.source.lanes, component.size
    x, growth, u = number.signed_width, size.bit_length(), told["U_WIDTH"]
    sums = (x + growth) * component.is_centred
    even = u + u % 2
    place = (even - 1).bit_length()
    inventory.add(component.kind)
    inventory.add("norm_sum", (lanes + 1) * sums + (lanes + 1) * (2 * x + growth))
    inventory.path("root", u)
    inventory.add("norm_root", u)
    inventory.add("norm_shift", even * place)
    inventory.multiplier(x, x, lanes)
    inventory.multiplier(x + growth + 1, 18, lanes)
    z = 17 + (growth + 1) // 2
    w, bias = component.affine.weight_format, component.affine.bias_format
    inventory.multiplier(18, w.signed_width, lanes)
    inventory.add("norm_high", (z - 17) * w.signed_width * lanes)
    inventory.add("dsp", 3)
    if component.is_centred:
        inventory.multiplier(x + growth, x + growth)
    if size & (size - 1):
        inventory.multiplier(2 * x + growth, growth)
        inventory.multiplier(x, growth + 1, lanes)
    inventory.add("norm_centre", (x + growth + 1) * lanes)
    inventory.add("norm_place", z * place * lanes)
    frac = 16 + w.frac_width
    weighed = z + w.signed_width
    if component.affine.bias is not None:
        inventory.add("norm_bias", weighed * lanes)
        weighed, frac = weighed + 1, max(frac, bias.frac_width)
    inventory.cast(weighed, frac, True, component.format, lanes)
    inventory.registers(15 * lanes * number.width + 12 * sums + 3 * u + 10 * (place - 1) + 300)
    inventory.registers(lanes * (5 * (x + growth) + 100 + 3 * weighed), by_multiplier=True)
    count_row(inventory, component.beats, lanes * number.width, sums + 18 + place - 1)
    count_sources(inventory, component.memories())
    inventory.rom(component.memories()[0].words, 16)
    inventory.counter(component.beats)
    inventory.skid(component.output.beat_width)


def count_softmax(inventory: Inventory, component: Softmax) -> None:
    """The largest, exponentials by table, their sum, its reciprocal, and a product each."""
    width, lanes = component.source.format.width, component.source.lanes
    size = component.source.shape[-1]
    total = 16 + (size - 1).bit_length()
    place = (total - 1).bit_length()
    has_two = len(component.tables) == 2
    inventory.path("maximum", lanes * width)
    inventory.add("softmax_max", (2 * lanes + 1) * width)
    inventory.add("softmax_far", lanes * min(width, 16))
    inventory.add("softmax_sum", (lanes + 1) * total)
    inventory.add("softmax_shift", total * place)
    inventory.add("softmax_lanes", lanes)
    inventory.add("softmax_mask", lanes * 16 if component.has_mask else 0)
    inventory.add("softmaxes")
    tables = [memory for memory in component.memories() if not memory.is_streamed]
    for memory in tables[:-1]:
        inventory.rom(memory.words, memory.width, lanes)
    inventory.rom(tables[-1].words, tables[-1].width)
    inventory.add("dsp", lanes * (1 + has_two) + 2)
    inventory.registers(lanes * (2 * width + 10 * 16) + 2 * width + 7 * place + 2 * total + 274)
    inventory.registers(lanes * (68 + 33 * has_two + 16), by_multiplier=True)
    count_row(inventory, component.beats, lanes * (width + component.has_mask), width)
    count_row(inventory, component.beats, lanes * 16, 18)
    for _ in range(2):
        inventory.counter(component.beats)
    count_sources(inventory, component.memories())
    inventory.cast(34, 33, False, component.format, lanes)
    inventory.skid(component.output.beat_width)


def count_max_pool(inventory: Inventory, component: MaxPool) -> None:
    """A window and the larger of two."""
    stream, geometry = component.source, component.geometry
    count_window(inventory, geometry, stream.beat_width)
    count_kept(inventory, geometry.beats, stream.beat_width, component.area)
    inventory.add("maximum", stream.beat_width)
    inventory.skid(component.outputs[0].beat_width)


def count_kept(inventory: Inventory, beats: int, width: int, area: int) -> None:
    """What a pool keeps of each channel while a window passes."""
    inventory.ram(beats, width, name="kept", is_late=True)
    inventory.registers(width)
    inventory.counter(beats)
    inventory.counter(area, extra=1)


def count_avg_pool(inventory: Inventory, component: AvgPool) -> None:
    """A window, a sum, and a division."""
    stream, geometry = component.source, component.geometry
    kept = stream.format.signed_width + (component.area - 1).bit_length()
    count_window(inventory, geometry, stream.beat_width)
    count_kept(inventory, geometry.beats, kept * stream.lanes, component.area)
    inventory.add("pool_sum", kept * stream.lanes)
    if not component.counts_padding:
        position = (sum(geometry.size) + sum(geometry.kernel)).bit_length() + 2
        inventory.add("pool_inside", position)
        here = sum(geometry.kernel).bit_length() + component.area.bit_length()
        inventory.registers(2 * position + here)
    count_divide(inventory, component.division, stream.lanes)
    inventory.registers(2)
    inventory.skid(component.outputs[0].beat_width)


def count_sliding_window(inventory: Inventory, component: SlidingWindow) -> None:
    """The windows alone."""
    count_window(inventory, component.geometry, component.source.beat_width)


def count_whole_window(inventory: Inventory, component: WholeWindow) -> None:
    """The pixels of a window's rows, moved on by one; what lies outside is masked."""
    geometry, bits = component.geometry, component.output.beat_width
    for size in geometry.size:
        inventory.counter(size, extra=1)
    inventory.add("window_pad", bits if any(geometry.padding) else 0)
    inventory.registers(component.cost().register_bits - 2 * bits)
    inventory.skid(bits)


def count_to_mxint(inventory: Inventory, component: ToMxint) -> None:
    """The highest bit of a block, and shifts by it."""
    stream, number = component.source, component.format
    width, lanes = stream.format.width, stream.lanes
    beats, blocks, _ = component.block_beats
    shifted = max(stream.format.signed_width, component.places.highest + 2)
    inventory.ram(beats + 1, stream.beat_width, name="row")
    inventory.ram(2, width, name="row")
    for size in (beats + 1, beats + 1, beats, beats, blocks, blocks):
        inventory.counter(size)
    inventory.counter(beats + 1, extra=1)
    inventory.add("block_seen", width * (lanes + 1))
    inventory.add("block_negate", width * lanes * stream.format.is_signed)
    inventory.add("block_place", width)
    inventory.add("shift", shifted * lanes * max(number.top, 1).bit_length())
    inventory.registers(width + 2 * stream.beat_width + 2 * number.shared_width + 8)
    inventory.registers(shifted * lanes)
    dropped = max(component.places.highest + 2 - number.mantissa, 0)
    result = type(stream.format)(number.mantissa, 0, narrow=True, rounding=number.rounding)
    inventory.cast(shifted, dropped, True, result, lanes, is_loose=True)
    inventory.skid(component.output.beat_width)


def _shift_luts(width: int, most: int) -> int:
    """A shift to the left by up to `most`: two-way choices, a stage for each bit of the distance.

    Bits that a stage only lets through or clears are part of the next stage's LUTs.
    """
    stages = most.bit_length()
    outputs = [min(width + (2 << stage) - 1, width + most) for stage in range(stages)]
    return sum(outputs) - max(5 * stages - 9, 0)


def count_from_mxint(inventory: Inventory, component: FromMxint) -> None:
    """A shift and a cast."""
    number, lanes = component.number, component.source.lanes
    shifted = number.mantissa + number.top
    inventory.add("shift_left", _shift_luts(number.mantissa, number.top) * lanes)
    inventory.registers(shifted * lanes + 1)
    inventory.cast(shifted, number.frac_width, True, component.format, lanes, is_loose=True)
    inventory.skid(component.output.beat_width)


COUNTS: dict[type, Callable[[Inventory, Any], None]] = {
    **streams.COUNTS,
    Cast: count_cast,
    Relu: count_relu,
    Binary: count_binary,
    WithConstant: count_with_constant,
    BatchNorm: count_batch_norm,
    LeakyRelu: count_leaky,
    PRelu: count_prelu,
    HardUnary: count_hard,
    Lut: count_lut,
    Piecewise: count_piecewise,
    Embedding: count_embedding,
    Norm: count_norm,
    Softmax: count_softmax,
    MaxPool: count_max_pool,
    AvgPool: count_avg_pool,
    SlidingWindow: count_sliding_window,
    WholeWindow: count_whole_window,
    ToMxint: count_to_mxint,
    FromMxint: count_from_mxint,
}
"""How each class and its children are counted."""
