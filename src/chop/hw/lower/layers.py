"""Layers with parameters: linear, convolution and batch normalisation."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.hw.affine import Line, fit_lines
from chop.hw.components import BatchNorm, Conv1d, Conv2d, Linear
from chop.hw.components.linear import Weights
from chop.hw.golden import MAX_WIDTH, Fixed, Ints, Span
from chop.hw.lower import formats
from chop.hw.lower.engine import Lowerer, Value, lowers, pixel_shape, row_major
from chop.hw.lower.pooling import pair, pixels_of
from chop.hw.stream import Stream
from chop.ir.arguments import named_arguments
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module

ROOT_BITS = 200
"""Fractional bits of 1 / sqrt(variance): far below any rounding that could notice."""


def _codes(tensor: Tensor, number: Fixed) -> Ints:
    return number.encode(tensor.detach().double().cpu().numpy())


def _weights(node: fx.Node, weight: Tensor, bias: Tensor | None) -> Weights:
    weight_format = formats.parameter_format(node, "weight")
    codes = _codes(weight, weight_format)
    if bias is None:
        return Weights(codes, weight_format)
    bias_format = formats.parameter_format(node, "bias")
    return Weights(codes, weight_format, _codes(bias, bias_format), bias_format)


def _parameters(low: Lowerer, node: fx.Node) -> tuple[Tensor, Tensor | None]:
    """Weight and bias: of the module, or the attributes that the function is called with."""
    if node.op == "call_module":
        module = node_module(node)
        return module.weight, getattr(module, "bias", None)  # type: ignore[return-value]
    given = dict(named_arguments(node))
    found = [given.get(name) for name in ("weight", "bias")]
    if any(isinstance(n, fx.Node) and n.op != "get_attr" for n in found):
        raise low.refuse(node, "weights are computed", "Allowed: parameters of the model")
    weight, bias = (attribute(low.graph, n) if isinstance(n, fx.Node) else None for n in found)
    assert weight is not None, f"{node.name} has no weight"
    return weight, bias


def attribute(graph: MaseGraph, node: fx.Node) -> Tensor:
    """The tensor that a `get_attr` node reads."""
    found: Any = graph.model
    for part in str(node.target).split("."):
        found = getattr(found, part)
    assert isinstance(found, Tensor), f"{node.target} is no tensor"
    return found


@lowers("fixed_linear")
def _linear(low: Lowerer, node: fx.Node) -> Value:
    weight, bias = _parameters(low, node)
    value = low.operand(node)
    if len(value.shape) > 1:
        value = low.arrange(node, value, row_major(value.shape), value.shape)
    else:
        weight = weight[:, torch.from_numpy(value.order)]  # the stream's order, not torch's
    in_lanes, out_lanes = low.parallelism.of(node.name, weight.shape[1], weight.shape[0])
    source = Stream(value.shape, in_lanes, low.stream(value).format)
    weights = _weights(node, weight, bias)
    number = low.result_format(node, weights.span(source.format))
    layer = Linear(source, weights, number, out_lanes)
    wire = low.add(node, layer, value)
    shape = (*value.shape[:-1], weight.shape[0])
    return Value(wire, shape, row_major(shape))


def _convolution(
    low: Lowerer, node: fx.Node, kind: type[Conv1d] | type[Conv2d], dims: int
) -> Value:
    weight, bias = _parameters(low, node)
    padding = _checked_padding(low, node)
    value = low.operand(node)
    if len(value.shape) != dims + 1:
        raise low.refuse(node, f"an operand of shape {value.shape}", "Allowed: one with a batch")
    value = low.pixels(node, value)
    in_lanes, out_lanes = low.parallelism.of(node.name, weight.shape[1], weight.shape[0])
    source = Stream(pixel_shape(value.shape), in_lanes, low.stream(value).format)
    # (out, in, rows, columns) -> (out, rows, columns, in): the order of a window
    weights = _weights(node, weight.movedim(1, -1).reshape(weight.shape[0], -1), bias)
    layer = kind(
        source,
        pair(tuple(weight.shape[2:]), dims),
        pair(low.setting(node, "stride", 1), dims),
        padding if dims == 2 else (padding[0], 0),
        weights=weights,
        format=low.result_format(node, weights.span(source.format)),
        lanes=out_lanes,
    )
    return pixels_of(low.add(node, layer, value), layer)


def _checked_padding(low: Lowerer, node: fx.Node) -> tuple[int, int]:
    """Zeros on each side, by (columns, rows); settings that are not built are refused."""
    for name, allowed in (("groups", 1), ("dilation", 1)):
        given = low.setting(node, name, allowed)
        if set(np.atleast_1d(given).tolist()) != {allowed}:
            raise low.refuse(node, f"{name} = {given}", f"Allowed: {name} = {allowed}")
    padding = low.setting(node, "padding", 0)
    if isinstance(padding, str) or low.setting(node, "padding_mode", "zeros") != "zeros":
        raise low.refuse(node, f"padding = {padding}", "Allowed: a number of zeros on each side")
    return pair(padding, 2 if np.size(padding) == 2 else 1)


@lowers("fixed_conv2d")
def _conv2d(low: Lowerer, node: fx.Node) -> Value:
    return _convolution(low, node, Conv2d, 2)


@lowers("fixed_conv1d")
def _conv1d(low: Lowerer, node: fx.Node) -> Value:
    return _convolution(low, node, Conv1d, 1)


@lowers("fixed_batch_norm")
def _batch_norm(low: Lowerer, node: fx.Node) -> Value:
    """One product and one sum per channel, with constants that give the model's own results."""
    value = low.operand(node)
    shape = value.shape
    if len(shape) > 1:
        value, shape = low.pixels(node, value), pixel_shape(shape)
    stream = low.stream(value)
    source = Stream(shape, math.gcd(stream.lanes, shape[-1]), stream.format)
    number = low.result_format(node, None, "its result is no binary fraction")
    lines = _lines(low, node)
    if len(value.shape) == 1:
        lines = [lines[k] for k in value.order]
    found = fit_lines(tuple(lines), source.format, number)
    if found is None or _size(*found.slopes, *found.offsets) > MAX_WIDTH:
        raise low.refuse(
            node,
            f"no constants of {MAX_WIDTH} bits give its results",
            "Quantise its operand (data_in_width …) or its result (data_out_width …)",
        )
    weight = Span(min(found.slopes), max(found.slopes), found.frac_width).format
    bias = Span(min(found.offsets), max(found.offsets), found.offset_frac).format
    slopes, offsets = (np.array(c, dtype=np.int64) for c in (found.slopes, found.offsets))
    norm = BatchNorm(source, number, slopes, offsets, weight, bias)
    return replace(value, wire=low.add(node, norm, value))


def _size(*numbers: int) -> int:
    return Span(min(numbers), max(numbers), 0).width


def _lines(low: Lowerer, node: fx.Node) -> list[Line]:
    """What each channel computes: (x - mean) / sqrt(variance + eps) * weight + bias."""
    module: Any = node_module(node)
    if module.running_mean is None or module.running_var is None:
        raise low.refuse(
            node, "it takes the statistics of the batch", "Allowed: track_running_stats = True"
        )
    channels = module.num_features
    weight, bias = (
        _fractions(node, module, name, default)
        for name, default in (("weight", [1.0] * channels), ("bias", [0.0] * channels))
    )
    lines = []
    for k, (mean, variance) in enumerate(
        zip(module.running_mean.tolist(), module.running_var.tolist(), strict=True)
    ):
        slope = _inverse_root(Fraction(variance) + Fraction(module.eps)) * weight[k]
        lines.append(Line(slope, bias[k] - Fraction(mean) * slope))
    return lines


def _fractions(node: fx.Node, module: nn.Module, name: str, default: list[float]) -> list[Fraction]:
    """A parameter of a layer as it computes with it: in its format, where it has one."""
    parameter = getattr(module, name)
    if parameter is None:
        return [Fraction(x) for x in default]
    number = formats.operand_format(node, name)
    if number is None:
        return [Fraction(x) for x in parameter.detach().double().tolist()]
    unit = Fraction(2) ** -number.frac_width
    return [int(code) * unit for code in _codes(parameter, number)]


def _inverse_root(number: Fraction) -> Fraction:
    """1 / sqrt(number) as a binary fraction."""
    square = (number.denominator << 2 * ROOT_BITS) // number.numerator
    return Fraction(math.isqrt(square), 1 << ROOT_BITS)
