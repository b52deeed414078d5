"""Linear layers: a folded matrix-vector product in fixed point or MXINT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from chop.hw.arith.golden import Fixed, Ints
from chop.hw.arith.mxint_wire import block_of
from chop.hw.design.component import Component
from chop.hw.design.design import Wire
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_linear.folded_product import BlockLinear as BlockLinear
from chop.hw.library.fixed_linear.folded_product import ExternalLinear as ExternalLinear
from chop.hw.library.fixed_linear.folded_product import ExternalLinearTwin as ExternalLinearTwin
from chop.hw.library.fixed_linear.folded_product import FoldedProduct as FoldedProduct
from chop.hw.library.fixed_linear.folded_product import Linear as Linear
from chop.hw.library.fixed_linear.folded_product import check_lanes as check_lanes
from chop.hw.library.fixed_linear.layer_weights import NO_BIAS as NO_BIAS
from chop.hw.library.fixed_linear.layer_weights import BlockWeights as BlockWeights
from chop.hw.library.fixed_linear.layer_weights import ExternalWeights as ExternalWeights
from chop.hw.library.fixed_linear.layer_weights import (
    ReloadedBlockWeights as ReloadedBlockWeights,
)
from chop.hw.library.fixed_linear.layer_weights import ReloadedWeights as ReloadedWeights
from chop.hw.library.fixed_linear.layer_weights import Weights as Weights
from chop.hw.library.fixed_linear.layer_weights import acc_bits as acc_bits
from chop.hw.library.fixed_linear.layer_weights import bias_codes as bias_codes
from chop.hw.library.fixed_linear.layer_weights import sample_blocks as sample_blocks
from chop.hw.library.fixed_linear.layer_weights import sample_weights as sample_weights
from chop.hw.library.fixed_linear.layer_weights import weight_codes as weight_codes
from chop.hw.library.fixed_linear.layer_weights import with_half as with_half
from chop.hw.lower import Lowerer, Value, fixed_formats, lowers, mxint_values
from chop.hw.lower.engine import row_major
from chop.hw.lower.storage import EXTERNAL, MEMORY, RELOAD
from chop.hw.lower.supported import attribute
from chop.hw.reference.exact import Exact, product
from chop.hw.reference.exact_ops import Arguments, exact_op, with_bias
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import node_module
from chop.registry import Registry, suggest

KINDS: dict[str, type[Weights]] = {
    MEMORY: Weights,
    EXTERNAL: ExternalWeights,
    RELOAD: ReloadedWeights,
}
"""Weights by their place."""


def encoded(tensor: Tensor, number: Fixed) -> Ints:
    """Return the codes of a parameter."""
    return number.encode(_doubles(tensor))


def _doubles(tensor: Tensor) -> Any:
    return tensor.detach().double().cpu().numpy()


def weights_of(
    node: fx.Node, weight: Tensor, bias: Tensor | None, *, place: str = MEMORY
) -> Weights:
    """Return weight and bias in the fixed-point formats that the node quantises them to."""
    kind = KINDS[place]
    weight_format = fixed_formats.parameter_format(node, "weight")
    codes = encoded(weight, weight_format)
    if bias is None:
        return kind(codes, weight_format)
    bias_format = fixed_formats.parameter_format(node, "bias")
    return kind(codes, weight_format, encoded(bias, bias_format), bias_format)


def _block_weights(
    node: fx.Node, weight: Tensor, bias: Tensor | None, *, place: str
) -> BlockWeights:
    """Return weight and bias in the MXINT formats that the node quantises them to."""
    blocks = mxint_values.parameter_blocks(node, "weight")
    if place == RELOAD:
        if bias is None:
            return ReloadedBlockWeights.of(blocks, _doubles(weight))
        of_bias = mxint_values.parameter_blocks(node, "bias")
        return ReloadedBlockWeights.of(blocks, _doubles(weight), of_bias, _doubles(bias))
    wire, matrix = weight_codes(blocks, _doubles(weight))
    if bias is None:
        return BlockWeights(matrix, wire)
    number, vector = bias_codes(mxint_values.parameter_blocks(node, "bias"), _doubles(bias))
    return BlockWeights(matrix, wire, vector, number)


def parameters_of(low: Lowerer, node: fx.Node) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias: those of the module, or the attributes passed to the function."""
    if node.op == "call_module":
        module = node_module(node)
        return module.weight, getattr(module, "bias", None)  # type: ignore[return-value]
    arguments = dict(named_arguments(node))
    nodes = [arguments.get(name) for name in ("weight", "bias")]
    if any(isinstance(n, fx.Node) and n.op != "get_attr" for n in nodes):
        raise low.refuse(node, "weights are computed", "Allowed: parameters of the model")
    weight, bias = (attribute(low.graph, n) if isinstance(n, fx.Node) else None for n in nodes)
    assert weight is not None, f"{node.name} has no weight"
    return weight, bias


MakeProduct = Callable[[Lowerer, str, Stream, Weights, Fixed], Component]
"""Makes a component from a node's name, operand (one lane), weights and result format."""
PRODUCTS: Registry[MakeProduct] = Registry("multiplier")
"""Ways to multiply by constants."""


def _make_array(
    low: Lowerer, name: str, source: Stream, weights: Weights, number: Fixed
) -> Component:
    """Return a folded array of multipliers."""
    outputs, inputs = weights.weight.shape
    in_lanes, out_lanes = low.parallelism.of(name, inputs, outputs)
    return Linear(replace(source, lanes=in_lanes), weights, number, out_lanes)


PRODUCTS.register("array", _make_array)


def product_maker(low: Lowerer, node: fx.Node) -> MakeProduct:
    """Return the way in which `node` multiplies; refuse an unknown name."""
    how = low.parallelism.multiplier_of(node.name)
    if how not in PRODUCTS:
        raise low.refuse(node, f"multiplier '{how}'", suggest(how, PRODUCTS).rstrip("."))
    return PRODUCTS[how]


@lowers("fixed_linear")
def lower_linear(low: Lowerer, node: fx.Node) -> Value:
    """Add a product with constant weights: in MXINT if the node quantises an operand to it."""
    value, wire = (_add_blocks if mxint_values.takes_blocks(node) else _add_fixed)(low, node)
    shape = (*value.shape[:-1], low.builder.stream(wire).shape[-1])
    return Value(wire, shape, row_major(shape))


def _add_fixed(low: Lowerer, node: fx.Node) -> tuple[Value, Wire]:
    """Add a fixed-point product; the weights follow the order of a flat operand."""
    weight, bias = parameters_of(low, node)
    value = low.operand(node)
    if len(value.shape) > 1:
        value = low.arrange(node, value, row_major(value.shape), value.shape)
    else:
        weight = weight[:, torch.from_numpy(value.order)]  # the stream's order, not torch's
    source = Stream(value.shape, 1, low.stream(value).format)
    weights = weights_of(node, weight, bias, place=low.weight_place(node))
    number = low.result_format(node, weights.span(source.format))
    make = product_maker(low, node)
    if isinstance(weights, ExternalWeights):
        return value, _add_external(low, node, value, weights, number)
    return value, low.add(node, make(low, node.name, source, weights, number), value)


def _add_external(
    low: Lowerer, node: fx.Node, value: Value, weights: ExternalWeights, number: Fixed
) -> Wire:
    """Add a folded array of multipliers whose weights come through a port."""
    how = low.parallelism.multiplier_of(node.name)
    if how != "array":
        allowed = "weights from outside are multiplied by an array: multiplier 'array'"
        raise low.refuse(node, f"multiplier '{how}' with external weights", allowed)
    outputs, inputs = weights.weight.shape
    in_lanes, out_lanes = low.parallelism.of(node.name, inputs, outputs)
    source = Stream(value.shape, in_lanes, low.stream(value).format)
    layer = ExternalLinear(source, weights, number, out_lanes)
    codes = weights.tiles(in_lanes, out_lanes)
    return low.add(node, layer, value, low.weight_port(node, layer.inputs[1], codes))


def _add_blocks(low: Lowerer, node: fx.Node) -> tuple[Value, Wire]:
    """Add an MXINT product; the lanes divide the blocks of both operands."""
    _refuse_fixed_options(low, node)
    weight, bias = parameters_of(low, node)
    outputs, inputs = weight.shape
    number = mxint_values.needed_blocks(low, node, "data_in_0")
    weights = _block_weights(node, weight, bias, place=low.weight_place(node))
    unit = math.gcd(inputs, block_of(number, inputs), weights.wire.block)
    in_lanes, out_lanes = low.parallelism.of(node.name, unit, outputs)
    value = mxint_values.block_operand(low, node, 0, in_lanes)
    source = low.stream(value)
    result = low.result_format(node, weights.span(source.format))
    return value, low.add(node, BlockLinear(source, weights, result, out_lanes), value)


def _refuse_fixed_options(low: Lowerer, node: fx.Node) -> None:
    """Refuse options of this node that only fixed point has."""
    how = low.parallelism.multiplier.get(node.name, "array")
    option = f"multiplier '{how}'" if how != "array" else ""
    allowed = "array"
    if low.storage.by_node.get(node.name) == EXTERNAL:
        option, allowed = "weights = 'external'", "memory"
    if option:
        what = f"{option} of a layer in MXINT"
        raise low.refuse(node, what, f"Allowed: '{allowed}', or the layer in 'integer'")


@exact_op("linear", "input weight bias")
def exact_linear(a: Arguments) -> Exact:
    """Return input @ weight.T + bias."""
    return with_bias(product(a["input"], a["weight"]), a.get("bias"), -1)
