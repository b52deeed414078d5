"""Area of folded products: linear layers with constant or external weights."""

from __future__ import annotations

from chop.hw.area.area_model import UNMODELLED, area_model
from chop.hw.area.inventory import Inventory, bits_for, is_block_rom
from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint_wire import Mxint
from chop.hw.design.component import Memory
from chop.hw.library.fixed_dot_product.area import count_dot_product
from chop.hw.library.fixed_linear import ExternalLinear, FoldedProduct, Linear
from chop.hw.library.packed import PackedLinear

UNMODELLED.append(PackedLinear)


def count_array(
    inventory: Inventory, layer: FoldedProduct, frac: int, bias: Fixed | None, varied: float = 1.0
) -> None:
    """Add `fixed_linear` without its memories; `varied`: see `count_dot_product`.

    `frac`: fractional bits of the accumulator.
    """
    in_folds, out_folds = layer.folds
    in_lanes, out_lanes = layer.inputs[0].lanes, layer.lanes
    slots = 2 if out_folds == 1 or in_folds < 2 else in_folds
    inventory.ram(slots, layer.inputs[0].beat_width, name="slots", is_late=True)
    _count_steps(inventory, slots, in_folds, out_folds)
    x, w = (number.lane_width + (not number.is_signed) for number in layer.operands)
    count_dot_product(
        inventory, x, w, in_lanes, out_lanes, varied=varied, registers=layer.registers
    )
    inventory.multiplier(x, w, in_lanes * out_lanes)
    inventory.packed(in_lanes * (out_lanes * w * varied + x))
    inventory.add("acc", out_lanes * layer.acc_width)
    inventory.path("sum", layer.acc_width)
    inventory.registers(out_lanes * layer.acc_width + 1)
    if layer.has_shifter:
        _count_shifts(inventory, layer)
    if bias is not None:
        inventory.add("bias", out_lanes * bias.width)
    out, width = layer.format, layer.acc_width
    has_half = out.rounding == "nearest_even" and frac > out.frac_width
    inventory.cast(width, frac, True, out, out_lanes, half=has_half, beside=width)
    inventory.skid(out_lanes * out.width)


def _count_shifts(inventory: Inventory, layer: FoldedProduct) -> None:
    """Add the shifter that brings sums of MXINT blocks to one scale.

    The sum of exponents passes six registers beside the product; three valid bits.
    """
    top = sum(number.top for number in layer.operands if isinstance(number, Mxint))
    bits, levels = layer.lanes * layer.acc_width, max(top, 1).bit_length()
    inventory.add("shift", bits * levels)
    inventory.add("block_exponent", layer.lanes * (levels + 1))
    inventory.registers(bits + 3 + 6 * layer.lanes * (levels + 1))


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
    """Add a folded product with constant or external weights."""
    weights, varied = layer.weights, _count_weights(inventory, layer)
    bias = weights.bias_format if weights.bias is not None else None
    count_array(inventory, layer, weights.frac(layer.source.format), bias, varied)


def _count_weights(inventory: Inventory, layer: Linear) -> float:
    """Add the memories of a layer; return the share of the bits of a word that are registers.

    Words are only packed if their bits matter: in block RAM they do not.
    """
    weights, (in_folds, out_folds) = layer.weights, layer.folds
    depth = in_folds * out_folds
    width = weights.weight_bits(layer.source.lanes) // depth
    inventory.sources(weights.bias_memories(layer.lanes))
    if isinstance(layer, ExternalLinear):
        return 1.0
    words = (0,) * depth if is_block_rom(depth, width) else layer.memories()[0].words
    return inventory.source(Memory("weight", words, width))
