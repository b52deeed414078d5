"""What the components that multiply are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint import Mxint
from chop.hw.design.component import Memory
from chop.hw.flow.predict.inventory import MAPPED_WEIGHT_BITS, Inventory, bits_for, is_block_rom
from chop.hw.library.fixed_conv import Conv
from chop.hw.library.fixed_linear import ExternalLinear, FoldedProduct, Linear
from chop.hw.library.fixed_matmul import Matmul
from chop.hw.library.fixed_shift_add import ShiftAdd
from chop.hw.library.sliding_window import Geometry


def count_sources(inventory: Inventory, memories: Sequence[Memory]) -> None:
    """Streamed memories: a table, a count of its words, and a register."""
    for memory in memories:
        if memory.is_streamed:
            count_source(inventory, memory)


def count_source(inventory: Inventory, memory: Memory) -> float:
    """One of them; the share of its bits that are registers."""
    depth = len(memory.words)
    inventory.add("sources")
    inventory.registers(1)
    inventory.counter(depth)
    if memory.banks > 1:
        inventory.counter(depth // memory.banks)
        inventory.counter(memory.repeats)
        inventory.add("bank_base", bits_for(depth))
        inventory.registers(bits_for(depth))
    return inventory.rom(memory.words, memory.width, mapped=MAPPED_WEIGHT_BITS)


def count_dot_product(
    inventory: Inventory,
    x: int,
    w: int,
    lanes: int,
    outputs: int,
    *,
    told: float = 1.0,
    registers: tuple[int, int] = (1, 1),
) -> None:
    """`fixed_dot_product` of signed numbers of `x` and `w` bits.

    `told`: the share of the bits of weights that are registers; the others equal some of them.
    `registers`: of an operand, and the levels of the tree between two.
    """
    chain = min(lanes, 4)
    chains = -(-lanes // chain)
    width = x + w + (lanes - 1).bit_length()
    operand, step = registers
    waits = sum(operand - 1 + max(lane % chain, 1) for lane in range(lanes))
    inventory.registers(waits * x, by_multiplier=True)
    inventory.registers(round(waits * w * outputs * told), by_multiplier=True)
    inventory.registers(lanes * (x + w) * outputs, by_multiplier=True)
    links = (lanes - chains) * outputs
    inventory.add("chain_sum", links * width)
    inventory.registers(links * width, by_multiplier=True)
    nodes, levels = (chains - 1) * outputs, (chains - 1).bit_length()
    inventory.add("tree_sum", nodes * width)
    inventory.path("tree", width * min(step, levels))
    inventory.registers((nodes if step == 1 else nodes // 2) * width)
    inventory.path("operand", 1 / operand)
    inventory.registers(3 * (operand + chain + -(-levels // step)))


def count_array(
    inventory: Inventory, layer: FoldedProduct, frac: int, bias: Fixed | None, told: float = 1.0
) -> None:
    """Count `fixed_linear` without its memories; `told`: see `count_dot_product`.

    `frac`: fractional bits of the accumulator.
    """
    in_folds, out_folds = layer.folds
    in_lanes, out_lanes = layer.inputs[0].lanes, layer.lanes
    slots = 2 if out_folds == 1 or in_folds < 2 else in_folds
    inventory.ram(slots, layer.inputs[0].beat_width, name="slots", is_late=True)
    count_steps(inventory, slots, in_folds, out_folds)
    x, w = (number.lane_width + (not number.is_signed) for number in layer.operands)
    count_dot_product(inventory, x, w, in_lanes, out_lanes, told=told, registers=layer.registers)
    inventory.multiplier(x, w, in_lanes * out_lanes)
    inventory.packed(in_lanes * (out_lanes * w * told + x))
    inventory.add("acc", out_lanes * layer.acc_width)
    inventory.path("sum", layer.acc_width)
    inventory.registers(out_lanes * layer.acc_width + 1)
    if layer.has_shifter:
        count_shifts(inventory, layer)
    if bias is not None:
        inventory.add("bias", out_lanes * bias.width)
    out, width = layer.format, layer.acc_width
    has_half = out.rounding == "nearest_even" and frac > out.frac_width
    inventory.cast(width, frac, True, out, out_lanes, half=has_half, beside=width)
    inventory.skid(out_lanes * out.width)


def count_shifts(inventory: Inventory, layer: FoldedProduct) -> None:
    """Count the shifter of sums of MXINT blocks and the exponents that travel with them."""
    top = sum(number.top for number in layer.operands if isinstance(number, Mxint))
    bits, levels = layer.lanes * layer.acc_width, max(top, 1).bit_length()
    inventory.add("shift", bits * levels)
    inventory.add("block_exponent", layer.lanes * (levels + 1))
    inventory.registers(bits + 3 + 6 * layer.lanes * (levels + 1))


def count_steps(inventory: Inventory, slots: int, in_folds: int, out_folds: int) -> None:
    """The counters of a folded product."""
    inventory.counter(slots)
    inventory.counter(slots)
    inventory.counter(slots, extra=1)
    if out_folds > 1 and in_folds > 1:
        inventory.add("replay", bits_for(slots) + bits_for(in_folds + 1))
        inventory.registers(bits_for(slots))
    inventory.counter(in_folds, extra=1)
    inventory.counter(out_folds, extra=1)


def count_linear(inventory: Inventory, layer: Linear) -> None:
    """Count a folded product with constant or external weights."""
    weights, told = layer.weights, count_weights(inventory, layer)
    bias = weights.bias_format if weights.bias is not None else None
    count_array(inventory, layer, weights.frac(layer.source.format), bias, told)


def count_weights(inventory: Inventory, layer: Linear) -> float:
    """Count the memories of a layer; words are packed only where their bits matter.

    Return the share of the bits of a word that are registers.
    """
    weights, (in_folds, out_folds) = layer.weights, layer.folds
    depth = in_folds * out_folds
    width = weights.weight_bits(layer.source.lanes) // depth
    count_sources(inventory, weights.bias_memories(layer.lanes))
    if isinstance(layer, ExternalLinear):
        return 1.0
    words = (0,) * depth if is_block_rom(depth, width) else layer.memories()[0].words
    return count_source(inventory, Memory("weight", words, width))


def count_window(inventory: Inventory, geometry: Geometry, width: int) -> None:
    """`sliding_window` of beats of `width` bits."""
    row_beats = geometry.size[0] * geometry.beats
    slots = geometry.lines * row_beats
    kernel, stride = geometry.kernel, geometry.stride
    position = (max(geometry.size) + sum(kernel) + sum(stride) - 1).bit_length() + 2
    offset = (slots + (kernel[1] + 1) * row_beats + kernel[0] * geometry.beats - 1).bit_length() + 2
    inventory.ram(slots, width)
    place = inventory.counter(slots)
    level = bits_for(slots + 1)
    inventory.chain(level, 3)  # one beat more, those freed besides, and whether so many are there
    inventory.chain(offset)  # whether the next beat has come
    for size in (geometry.beats, *kernel):
        inventory.counter(size, extra=1)
    _count_places(inventory, geometry, slots, place, offset)
    moves = [s for s, k in zip((1, 1, *stride), (*kernel, 2, 2), strict=True) if k > 1]
    for step in moves:
        inventory.constant_sum(position, step)
    inventory.add("windows")
    inventory.path("window", place)
    inventory.add("window_level", level)
    inventory.add("window_position", position * len(moves))
    inventory.add("window_outside", position * any(geometry.padding))
    inventory.add("window_pad", width if any(geometry.padding) else 0)
    inventory.registers(5 * place + 4 * offset + 4 * position + place + 3)
    inventory.skid(width)


def _count_places(
    inventory: Inventory, geometry: Geometry, slots: int, place: int, offset: int
) -> None:
    """Where beats, rows of a window, windows and rows of windows lie in the ring, and how far."""
    row_beats = geometry.size[0] * geometry.beats
    across, down = geometry.stride[0] * geometry.beats, geometry.stride[1] * row_beats
    rows = [row_beats] * (geometry.kernel[1] > 1)
    for step in (1, *rows, across % slots, down, geometry.size[1] * row_beats % slots):
        if step:
            inventory.constant_sum(place, step)
            inventory.constant_sum(place + 1, step - slots)
            inventory.add("window_place", place)
            inventory.add("window_ring", place * (slots & (slots - 1) > 0))
    for step in (1, *rows, across, down):
        inventory.constant_sum(offset, step)
        inventory.add("window_offset", offset)


def count_conv(inventory: Inventory, layer: Conv) -> None:
    """A window and the product that it is fed to."""
    count_window(inventory, layer.geometry, layer.source.beat_width)
    count_linear(inventory, layer.product)


def count_tiles(
    inventory: Inventory, width: int, rows: int, row_beats: int, group: int, repeats: int
) -> None:
    """`tile_buffer`."""
    tiles = max(rows // group * row_beats, 1)
    for _ in range(group):
        inventory.ram(2 << bits_for(tiles), width, name="tiles")
    place = inventory.counter(tiles)
    inventory.counter(tiles)
    inventory.add("tile_buffers")
    inventory.add("tile_place", place)
    inventory.registers(place + 5)
    for size in (row_beats, group, repeats):
        inventory.counter(size)


def count_matmul(inventory: Inventory, layer: Matmul) -> None:
    """A tile buffer and a folded product."""
    in_folds, out_folds = layer.folds
    turned = layer.is_transposed
    rows, row_beats, group = (
        (layer.columns, in_folds, layer.lanes)
        if turned
        else (layer.left.shape[-1], out_folds, layer.left.lanes)
    )
    count_tiles(inventory, layer.right.beat_width, rows, row_beats, group, layer.rows)
    count_array(inventory, layer, layer.frac_width, None)


def count_shift_add(inventory: Inventory, layer: ShiftAdd) -> None:
    """The additions of the network, each as wide as what it adds."""
    network, number = layer.network, layer.source.format
    spans = network.spans(number.low, number.high)
    for k, node in enumerate(network.nodes, network.inputs):
        inventory.add("network_sum", spans[k].width - node.shift)
        inventory.add("network_minus", (spans[k].width - node.shift) * (node.sign < 0))
        inventory.add("network_nodes")
        inventory.path("sum", spans[k].width * layer.adders_per_stage)
    for result in network.results:
        if result.node >= 0:
            inventory.add("network_out", layer.acc_width - result.shift)
    inventory.registers(layer.cost().register_bits + layer.timing.stages + 3)
    outputs = layer.output.lanes
    inventory.cast(
        layer.acc_width,
        layer.frac,
        True,
        layer.format,
        outputs,
        half=layer.half > 0,
        beside=layer.acc_width,
    )
    inventory.skid(layer.output.beat_width)
    inventory.registers(-2 * layer.output.beat_width)


COUNTS: dict[type, Callable[[Inventory, Any], None]] = {
    Linear: count_linear,
    Conv: count_conv,
    Matmul: count_matmul,
    ShiftAdd: count_shift_add,
}
"""How each class and its children are counted."""
