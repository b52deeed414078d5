"""Areas of the products and of the leaky rectifiers, to be moved into the folders of these."""

from __future__ import annotations

from chop.hw.area.area_model import UNMODELLED, area_model
from chop.hw.area.inventory import BESIDE_PRODUCT, Inventory, bits_for, is_block_rom
from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint import Mxint
from chop.hw.arith.shift_add import signed_digits
from chop.hw.design.component import Memory
from chop.hw.library.fixed_leaky_relu import LeakyRelu
from chop.hw.library.fixed_linear import ExternalLinear, Linear
from chop.hw.library.fixed_matmul import Matmul
from chop.hw.library.fixed_prelu import PRelu
from chop.hw.library.mxint_linear import BlockLinear
from chop.hw.library.mxint_matmul import BlockMatmul
from chop.hw.library.packed import PackedLinear
from chop.hw.streams.tile_buffer.area import count_tiles

UNMODELLED.extend([PackedLinear, PRelu])
CHAIN = 4
"""Longest chain of multipliers that add to each other, CHAIN in `fixed_dot_product.sv`."""


def count_dot_product(
    inventory: Inventory,
    x: int,
    w: int,
    lanes: int,
    outputs: int,
    *,
    varied: float = 1.0,
    registers: tuple[int, int] = (1, 1),
) -> None:
    """Add `fixed_dot_product` of signed numbers of `x` and `w` bits.

    `varied`: the share of the weights' bits that are registers; the others equal some of them.
    `registers`: registers of an operand, and levels of the adder tree between two registers.
    """
    chain = min(lanes, CHAIN)
    chains = -(-lanes // chain)
    width = x + w + (lanes - 1).bit_length()
    operand, step = registers
    waits = sum(operand - 1 + max(lane % chain, 1) for lane in range(lanes))
    inventory.registers(waits * x, by_multiplier=True)
    inventory.registers(round(waits * w * outputs * varied), by_multiplier=True)
    inventory.registers(lanes * (x + w) * outputs, by_multiplier=True)
    links = (lanes - chains) * outputs
    inventory.add("chain_sum", links * width)
    inventory.registers(links * width, by_multiplier=True)
    nodes, levels = (chains - 1) * outputs, (chains - 1).bit_length()
    inventory.add("tree_sum", nodes * width)
    inventory.path("tree", width * min(step, levels))
    inventory.registers((nodes if step == 1 else nodes // 2) * width)
    inventory.path("operand", 1 / operand)
    # Each stage has three tags: valid, first and last of a sum.
    inventory.registers(3 * (operand + chain + -(-levels // step)))


def count_array(
    inventory: Inventory,
    *,
    x: Fixed,
    w: Fixed,
    folds: tuple[int, int],
    lanes: tuple[int, int],
    acc_width: int,
    frac: int,
    out: Fixed,
    bias: Fixed | None,
    varied: float = 1.0,
    registers: tuple[int, int] = (1, 1),
) -> None:
    """Add `fixed_linear` without memories; `varied`, `registers` as in `count_dot_product`."""
    in_folds, out_folds = folds
    in_lanes, out_lanes = lanes
    slots = 2 if out_folds == 1 or in_folds < 2 else in_folds
    beat = in_lanes * x.lane_width + x.shared_width
    inventory.ram(slots, beat, name="slots", is_late=True)
    _count_steps(inventory, slots, in_folds, out_folds)
    x_width, w_width = x.lane_width + (not x.is_signed), w.lane_width + (not w.is_signed)
    count_dot_product(
        inventory, x_width, w_width, in_lanes, out_lanes, varied=varied, registers=registers
    )
    inventory.multiplier(x_width, w_width, in_lanes * out_lanes)
    inventory.packed(in_lanes * (out_lanes * w_width * varied + x_width))
    inventory.add("acc", out_lanes * acc_width)
    inventory.path("sum", acc_width)
    inventory.registers(out_lanes * acc_width + 1)
    if bias is not None:
        inventory.add("bias", out_lanes * bias.width)
    has_half = out.rounding == "nearest_even" and frac > out.frac_width
    inventory.cast(acc_width, frac, True, out, out_lanes, half=has_half, beside=acc_width)
    inventory.skid(out_lanes * out.width)


def _count_steps(inventory: Inventory, slots: int, in_folds: int, out_folds: int) -> None:
    """Add the counters of a folded product: slots written, read and filled, beats and passes."""
    inventory.counter(slots)
    inventory.counter(slots)
    inventory.counter(slots, extra=1)
    if out_folds > 1 and in_folds > 1:
        inventory.add("replay", bits_for(slots) + bits_for(in_folds + 1))
        inventory.registers(bits_for(slots))
    inventory.counter(in_folds, extra=1)
    inventory.counter(out_folds, extra=1)


@area_model(Linear)
def count_linear(inventory: Inventory, layer: Linear) -> None:
    """Add a folded product with constant weights, or with weights from outside."""
    weights = layer.weights
    count_array(
        inventory,
        x=layer.source.format,
        w=weights.weight_format,
        folds=layer.folds,
        lanes=(layer.source.lanes, layer.lanes),
        acc_width=layer.acc_width,
        frac=weights.frac(layer.source.format),
        out=layer.format,
        bias=weights.bias_format if weights.bias is not None else None,
        varied=_count_weights(inventory, layer),
        registers=layer.registers,
    )


def _count_weights(inventory: Inventory, layer: Linear) -> float:
    """Add the memories of a layer; return the share of the bits of a word that are registers.

    Words are only packed if their bits matter: in block RAM they do not.
    """
    weights, (in_folds, out_folds) = layer.weights, layer.folds
    depth = in_folds * out_folds
    width = layer.source.lanes * layer.lanes * weights.weight_format.width
    inventory.sources(weights.bias_memories(layer.lanes))
    if isinstance(layer, ExternalLinear):
        return 1.0
    words = (0,) * depth if is_block_rom(depth, width) else layer.memories()[0].words
    return inventory.source(Memory("weight", words, width))


@area_model(Matmul)
def count_matmul(inventory: Inventory, layer: Matmul) -> None:
    """Add a tile buffer and a folded product."""
    in_folds, out_folds = layer.folds
    rows, row_beats, group = (
        (layer.columns, in_folds, layer.lanes)
        if layer.is_transposed
        else (layer.left.shape[-1], out_folds, layer.left.lanes)
    )
    count_tiles(inventory, layer.right.beat_width, rows, row_beats, group, layer.rows)
    count_array(
        inventory,
        x=layer.left.format,
        w=layer.right.format,
        folds=layer.folds,
        lanes=(layer.left.lanes, layer.lanes),
        acc_width=layer.acc_width,
        frac=layer.frac_width,
        out=layer.format,
        bias=None,
        registers=layer.registers,
    )


def _count_shifts(inventory: Inventory, layer: BlockLinear | BlockMatmul, *numbers: Fixed) -> None:
    """Add the shifts that bring sums of blocks of `numbers` to one scale.

    The sum of exponents passes six registers beside the product; three valid bits.
    """
    top = sum(number.top for number in numbers if isinstance(number, Mxint))
    places, bits = max(top, 1).bit_length(), layer.lanes * layer.acc_width
    inventory.add("shift", bits * places)
    inventory.add("block_exponent", layer.lanes * (places + 1))
    inventory.registers(bits + 3 + 6 * layer.lanes * (places + 1))


@area_model(BlockLinear)
def count_block_linear(inventory: Inventory, layer: BlockLinear) -> None:
    """Add a folded product of blocks."""
    weights = layer.weights
    count_array(
        inventory,
        x=layer.source.format,
        w=weights.wire,
        folds=layer.folds,
        lanes=(layer.source.lanes, layer.lanes),
        acc_width=layer.acc_width,
        frac=weights.frac(layer.source.format),
        out=layer.format,
        bias=weights.bias_format if weights.bias is not None else None,
    )
    _count_shifts(inventory, layer, layer.source.format, weights.wire)
    inventory.sources(layer.memories())


@area_model(BlockMatmul)
def count_block_matmul(inventory: Inventory, layer: BlockMatmul) -> None:
    """Add a tile buffer and a folded product of blocks."""
    in_folds = layer.folds[0]
    count_tiles(inventory, layer.right.beat_width, layer.columns, in_folds, layer.lanes, layer.rows)
    count_array(
        inventory,
        x=layer.left.format,
        w=layer.right.format,
        folds=layer.folds,
        lanes=(layer.left.lanes, layer.lanes),
        acc_width=layer.acc_width,
        frac=layer.left.format.frac_width + layer.right.format.frac_width,
        out=layer.format,
        bias=None,
    )
    _count_shifts(inventory, layer, layer.left.format, layer.right.format)


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
    frac = number.frac_width + component.slope_frac
    if number.is_signed:
        inventory.cast(wide, frac, True, component.format, lanes, beside=BESIDE_PRODUCT)
    else:  # never negative: the number itself
        inventory.cast(number.width, number.frac_width, False, component.format, lanes)
    inventory.skid(component.outputs[0].beat_width)
