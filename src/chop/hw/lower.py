"""From a quantised MaseGraph to a hardware design, node by node.

The column `rtl` of the op table says how an op is realised; `LOWERINGS` has one function for each
of its values. Number formats come from the metadata: an operand is cast to the format of the
argument that takes it, a result to the format of `data_out_0`. The order in which the elements of
a tensor are streamed is free: images go channel by channel within a pixel, and a flattened image
stays so, because the weights behind it are permuted instead.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.errors import HardwareError
from chop.hw.component import Component
from chop.hw.components import (
    Add,
    AvgPool,
    BatchNorm,
    Cast,
    Conv1d,
    Conv2d,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Linear,
    Lut,
    MaxPool,
    Mul,
    Relu,
    Reorder,
    Sub,
)
from chop.hw.components.linear import Weights
from chop.hw.cycles import size_fifos, with_fifos
from chop.hw.design import Builder, Design, Wire
from chop.hw.golden import Fixed, Ints
from chop.hw.stream import Stream, divisors
from chop.ir.arguments import named_arguments
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.ops import OPS, Op, find_op, node_module
from chop.nn.quantized.function import call_quantizers, is_quantized_function
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantized.operands import DATA_OUT
from chop.nn.quantizers import Bypass
from chop.registry import Registry

Shape = tuple[int, ...]
FIXED_TYPES = ("fixed", "integer")
"""Number formats that this back end builds, by their name in the metadata."""
SLOPE_FRAC = 8
"""Fractional bits of the slope of a leaky rectifier."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor on its way: element i of the stream is element order[i] of the torch tensor."""

    wire: Wire
    shape: Shape
    order: Ints

    def encode(self, x: Tensor, number: Fixed) -> Ints:
        """Codes of a batch of torch tensors, in the order of the stream."""
        flat = x.detach().double().cpu().numpy().reshape(len(x), -1)
        return number.encode(flat[:, self.order])

    def decode(self, codes: Ints, number: Fixed) -> Tensor:
        """A batch of torch tensors from the codes of the stream."""
        flat = np.empty((len(codes), len(self.order)))
        flat[:, self.order] = number.decode(codes.reshape(len(codes), -1))
        return torch.from_numpy(flat).reshape(len(codes), *self.shape)


@dataclass(frozen=True, eq=False)
class Lowered:
    """A design and how the tensors of its graph map to its ports."""

    design: Design
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    components: Mapping[str, Component]
    """By the name of the graph's node."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """What each node of the graph gives, by its name: where it flows, in which order."""
    depths: Mapping[Wire, int] = field(default_factory=dict)
    """Of the FIFOs."""

    def encode(self, *tensors: Tensor) -> dict[str, Ints]:
        """Input codes for batches of torch tensors, in the order of the graph's inputs."""
        pairs = zip(self.inputs.items(), tensors, strict=True)
        return {
            name: value.encode(x, self.design.inputs[name].format).reshape(
                len(x), *self.design.inputs[name].shape
            )
            for (name, value), x in pairs
        }

    def decode(self, codes: Mapping[str, Ints]) -> list[Tensor]:
        """Torch tensors for output codes."""
        streams = self.design.output_streams()
        return [v.decode(codes[name], streams[name].format) for name, v in self.outputs.items()]


@dataclass(frozen=True)
class Parallelism:
    """Elements per beat: at most `most`, or as given for a node as (input, output)."""

    most: int = 4
    by_node: Mapping[str, tuple[int, int]] | None = None

    def of(self, name: str, inputs: int, outputs: int) -> tuple[int, int]:
        """Lanes on both sides of node `name` with so many input and output channels."""
        if self.by_node and name in self.by_node:
            return self.by_node[name]
        return self._fit(inputs), self._fit(outputs)

    def _fit(self, channels: int) -> int:
        return max(d for d in divisors(channels) if d <= max(self.most, 1))


Lowering = Callable[["Lowerer", fx.Node], Value | None]
LOWERINGS: Registry[Lowering] = Registry("hardware realisation")


def lowers(name: str) -> Callable[[Lowering], Lowering]:
    """Register the function that lowers ops whose row says `rtl=name`."""
    return lambda function: LOWERINGS.register(name, function)


def lower(
    graph: MaseGraph,
    parallelism: Parallelism,
    *,
    depths: Mapping[Wire, int] | None = None,
    name: str = "top",
) -> Lowered:
    """The design of `graph`, with FIFOs of the given depths, or of those it needs."""
    check_supported(graph)
    lowered = Lowerer(graph, parallelism, name).run()
    if depths is None:
        depths = size_fifos(lowered.design)
    return replace(lowered, design=with_fifos(lowered.design, depths), depths=depths)


def check_supported(graph: MaseGraph) -> None:
    """Raise, before anything is made, where a node has no realisation in hardware."""
    for node in graph.fx_graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or realisation(graph, node):
            continue
        op = _op(graph, node)
        nearest = _nearest(op.name if op else str(node.target))
        raise HardwareError(
            f"node '{node.name}' ({op.name if op else node.target}): no hardware component "
            f"realises it. Nearest supported: {nearest}. Supported: {', '.join(supported_ops())}."
        )


def supported_ops() -> list[str]:
    """Ops of the table that hardware realises."""
    return sorted(op.name for op in OPS.values() if op.rtl)


def realisation(graph: MaseGraph, node: fx.Node) -> str:
    """The `rtl` column of the node's op; empty where there is none."""
    op = _op(graph, node)
    return op.rtl if op else ""


def _op(graph: MaseGraph, node: fx.Node) -> Op | None:
    return find_op(node, graph.custom_ops)


_NEAREST = {
    "softmax": "leave it out, the largest logit stays the largest",
    "layer_norm": "batch_norm1d",
    "matmul": "linear",
    "div": "mul by the reciprocal",
    "adaptive_max_pool2d": "max_pool2d",
    "relu6": "hardsigmoid",
    "elu": "leaky_relu",
    "conv3d": "conv2d",
}


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, supported_ops(), n=1, cutoff=0.3)
    return _NEAREST.get(name) or (close[0] if close else "linear")


class Lowerer:
    """Walks the graph once and builds the design."""

    def __init__(self, graph: MaseGraph, parallelism: Parallelism, name: str) -> None:
        self.graph = graph
        self.parallelism = parallelism
        self.builder = Builder(name)
        self.values: dict[fx.Node, Value] = {}
        self.components: dict[str, Component] = {}
        self.outputs: dict[str, Value] = {}

    def run(self) -> Lowered:
        """Every node in turn."""
        inputs: dict[str, Value] = {}
        for node in self.graph.fx_graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._input(node, len(inputs))
                inputs[self.values[node].wire.stage] = self.values[node]
            elif node.op == "output":
                self._output(node)
            elif node.op != "get_attr":  # weights are read where they are used
                value = LOWERINGS[realisation(self.graph, node)](self, node)
                if value is not None:
                    self.values[node] = value
        values = {node.name: value for node, value in self.values.items()}
        return Lowered(self.builder.build(), inputs, self.outputs, self.components, values)

    def _input(self, node: fx.Node, number: int) -> Value:
        shape = tuple(mase_meta(node).common["results"]["data_out_0"]["shape"])[1:]
        user = next(iter(node.users))
        wants_pixels = realisation(self.graph, user) in PIXEL_COMPONENTS and len(shape) > 1
        order = pixel_order(shape) if wants_pixels else row_major(shape)
        stream_shape = (*shape[1:], shape[0]) if wants_pixels else shape
        lanes, _ = self.parallelism.of(node.name, stream_shape[-1], stream_shape[-1])
        stream = Stream(stream_shape, lanes, self.result_format(node))
        return Value(self.builder.input(f"data_in_{number}", stream), shape, order)

    def _output(self, node: fx.Node) -> None:
        results = node.args[0]
        for number, result in enumerate(
            results if isinstance(results, tuple | list) else [results]
        ):
            if not isinstance(result, fx.Node):
                raise HardwareError(f"node 'output': result {number} is no tensor of the graph.")
            value = self.values[result]
            self.builder.output(f"data_out_{number}", value.wire)
            self.outputs[f"data_out_{number}"] = value

    def operand(self, node: fx.Node, number: int = 0) -> Value:
        """The value of an operand of `node`."""
        tensors = [a for a in node.all_input_nodes if a in self.values]
        if number >= len(tensors) and len(tensors) == 1:
            return self.values[tensors[0]]  # x + x has one input node
        return self.values[tensors[number]]

    def stream(self, value: Value) -> Stream:
        """What flows for `value`."""
        return self.builder.stream(value.wire)

    def arrange(self, node: fx.Node, value: Value, order: Ints, shape: Shape) -> Value:
        """`value` streamed in `order`, as a stream of `shape`; reordered only where it differs."""
        if np.array_equal(value.order, order):
            return value
        place = np.empty_like(value.order)
        place[value.order] = np.arange(len(place))
        stream = self.stream(value)
        lanes = math.gcd(stream.lanes, shape[-1])
        source = Stream((stream.elements,), lanes, stream.format)
        component = Reorder(source, tuple(int(i) for i in place[order]), shape)
        wire = self.builder.add(f"{node.name}_reorder_{value.wire.stage}", component, value.wire)
        return Value(wire, value.shape, order)

    def add(self, node: fx.Node, component: Component, *values: Value) -> Wire:
        """A stage named after the node."""
        self.components[node.name] = component
        wire = self.builder.add(node.name, component, *(v.wire for v in values))
        wanted = self.result_format(node)
        if component.output.format != wanted:
            cast = Cast(component.output, wanted)
            wire = self.builder.add(f"{node.name}_cast", cast, wire)
        return wire

    def argument_format(self, node: fx.Node, name: str) -> Fixed:
        """Format of an argument of `node`; an operand left in float comes as it is."""
        meta = mase_meta(node).common["args"][name]
        if name.startswith("data_in_") and not is_applied(node, meta):
            return self.stream(self.operand(node, int(name.removeprefix("data_in_")))).format
        return _format(node, f"args.{name}", meta)

    def result_format(self, node: fx.Node) -> Fixed:
        """Format of the result of `node`."""
        return result_format(node)

    def setting(self, node: fx.Node, name: str, default: Any) -> Any:
        """A configuration value: the module's attribute, or the argument of the function."""
        if node.op == "call_module":
            return getattr(node_module(node), name, default)
        args = mase_meta(node).common["args"]
        if name in args:
            return args[name].get("value", default)
        rest = args["args"].value[1:] if "args" in args else ()  # functions without a signature
        return dict(zip(POOL_SETTINGS, rest, strict=False)).get(name, default)

    def refuse(self, node: fx.Node, what: str, allowed: str) -> HardwareError:
        """An error that names node, op, what was given and what is allowed."""
        op = _op(self.graph, node)
        return HardwareError(f"node '{node.name}' ({op.name if op else '?'}): {what}. {allowed}.")


def result_format(node: fx.Node) -> Fixed:
    """The format in which hardware hands on the result of `node`.

    What the metadata says of the result; but where the software does not quantise it, the format
    its users quantise it to, so that it is rounded once in both.
    """
    result = mase_meta(node).common["results"]["data_out_0"]
    demanded = _demanded(node)
    is_told = result.type in FIXED_TYPES
    if len(demanded) == 1 and not (is_told and _quantizes_result(node)):
        return demanded.pop()
    return _format(node, "results.data_out_0", result)


def _demanded(node: fx.Node) -> set[Fixed]:
    """The formats that the users of `node` quantise it to, through those that leave it in float."""
    found: set[Fixed] = set()
    for user in node.users:
        if user.op == "output":
            continue
        number = user.all_input_nodes.index(node)
        meta = mase_meta(user).common["args"].get(f"data_in_{number}")
        if meta is not None and is_applied(user, meta):
            found.add(_format(user, f"args.data_in_{number}", meta))
        elif meta is not None:
            found |= _demanded(user)
    return found


def is_applied(node: fx.Node, operand: ValueMeta) -> bool:
    """Whether the format in the metadata of an operand of `node` is one that is applied.

    An op that is left in float repeats the format that the layer before it tells of a result it
    does not quantise; formats set by hand are meant.
    """
    if operand.type not in FIXED_TYPES:
        return False
    if _quantizers(node) or not isinstance(operand.source, fx.Node):
        return True
    told = mase_meta(operand.source).common["results"]["data_out_0"]
    is_repeated = (operand.type, operand.precision) == (told.type, told.precision)
    return not is_repeated or _quantizes_result(operand.source)


def _quantizes_result(node: fx.Node) -> bool:
    """Whether a result format in the metadata is one that is applied.

    A quantised layer tells the format of its first operand for a result it does not quantise;
    formats set by hand are meant.
    """
    return not isinstance(_quantizers(node).get(DATA_OUT), Bypass)


def _quantizers(node: fx.Node) -> Mapping[str, Any]:
    """What `node` quantises itself, by role; nothing where it is left in float."""
    if node.op == "call_module":
        module = node_module(node)
        return module.quantizers if isinstance(module, QuantizedModule) else {}
    if node.op == "call_function" and is_quantized_function(node.target):
        return call_quantizers(node.target, node.kwargs.get("config"))
    return {}


def _format(node: fx.Node, where: str, meta: ValueMeta) -> Fixed:
    if meta.type not in FIXED_TYPES or not meta.precision or len(meta.precision) < 2:
        raise HardwareError(
            f"node '{node.name}': {where} is {meta.type} {meta.precision}. Hardware needs type "
            f"'fixed' and precision [width, frac_width]: quantise the graph or set both by hand."
        )
    width, frac_width = meta.precision[:2]
    return Fixed(int(width), int(frac_width))


def row_major(shape: Shape) -> Ints:
    """The order of torch itself."""
    return np.arange(math.prod(shape))


def pixel_order(shape: Shape) -> Ints:
    """The channels of a pixel together: (C, H, W) streamed as (H, W, C), (C, L) as (L, C)."""
    axes = (*range(1, len(shape)), 0)
    return np.arange(math.prod(shape)).reshape(shape).transpose(axes).reshape(-1)


def _pair(value: Any, dims: int) -> tuple[int, int]:
    """(columns, rows) of a size given as one number or as (rows, columns)."""
    sizes = [int(v) for v in value] if isinstance(value, tuple | list) else [int(value)] * dims
    return (sizes[-1], sizes[0] if dims == 2 else 1)


POOL_SETTINGS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
PIXEL_COMPONENTS = ("fixed_conv1d", "fixed_conv2d", "fixed_max_pool", "fixed_avg_pool")


def _codes(tensor: Tensor, number: Fixed) -> Ints:
    return number.encode(tensor.detach().double().cpu().numpy())


def _weights(low: Lowerer, node: fx.Node, weight: Tensor, bias: Tensor | None) -> Weights:
    weight_format = low.argument_format(node, "weight")
    codes = _codes(weight, weight_format)
    if bias is None:
        return Weights(codes, weight_format)
    bias_format = low.argument_format(node, "bias")
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
    number = low.argument_format(node, "data_in_0")
    source = Stream(value.shape, in_lanes, number)
    weights = _weights(low, node, weight, bias)
    layer = Linear(source, weights, low.result_format(node), out_lanes)
    wire = low.add(node, layer, value)
    shape = (*value.shape[:-1], weight.shape[0])
    return Value(wire, shape, row_major(shape))


def _convolution(
    low: Lowerer, node: fx.Node, kind: type[Conv1d] | type[Conv2d], dims: int
) -> Value:
    weight, bias = _parameters(low, node)
    for name, allowed in (("groups", 1), ("dilation", 1)):
        given = low.setting(node, name, allowed)
        if set(np.atleast_1d(given).tolist()) != {allowed}:
            raise low.refuse(node, f"{name} = {given}", f"Allowed: {name} = {allowed}")
    padding = low.setting(node, "padding", 0)
    if isinstance(padding, str) or low.setting(node, "padding_mode", "zeros") != "zeros":
        raise low.refuse(node, f"padding = {padding}", "Allowed: a number of zeros on each side")
    value = low.operand(node)
    value = low.arrange(node, value, pixel_order(value.shape), _pixel_shape(value.shape))
    in_lanes, out_lanes = low.parallelism.of(node.name, weight.shape[1], weight.shape[0])
    source = Stream(_pixel_shape(value.shape), in_lanes, low.argument_format(node, "data_in_0"))
    # (out, in, rows, columns) -> (out, rows, columns, in): the order of a window
    matrix = weight.movedim(1, -1).reshape(weight.shape[0], -1)
    layer = kind(
        source,
        _pair(tuple(weight.shape[2:]), dims),
        _pair(low.setting(node, "stride", 1), dims),
        (_pair(padding, dims)[0], _pair(padding, dims)[1] if dims == 2 else 0),
        weights=_weights(low, node, matrix, bias),
        format=low.result_format(node),
        lanes=out_lanes,
    )
    return _pixels(low.add(node, layer, value), layer)


def _pixel_shape(shape: Shape) -> Shape:
    return (*shape[1:], shape[0])


def _pixels(wire: Wire, component: Component) -> Value:
    """A value streamed pixel by pixel, from the shape of the stream that gives it."""
    stream_shape = component.output.shape
    shape = (stream_shape[-1], *stream_shape[:-1])
    return Value(wire, shape, pixel_order(shape))


@lowers("fixed_conv2d")
def _conv2d(low: Lowerer, node: fx.Node) -> Value:
    return _convolution(low, node, Conv2d, 2)


@lowers("fixed_conv1d")
def _conv1d(low: Lowerer, node: fx.Node) -> Value:
    return _convolution(low, node, Conv1d, 1)


def _pooled(low: Lowerer, node: fx.Node) -> tuple[Value, Stream]:
    value = low.operand(node)
    if len(value.shape) != 3:
        raise low.refuse(
            node, f"an operand of shape {value.shape}", "Allowed: (channels, rows, columns)"
        )
    value = low.arrange(node, value, pixel_order(value.shape), _pixel_shape(value.shape))
    shape = _pixel_shape(value.shape)
    lanes = low.stream(value).lanes
    lanes = lanes if shape[-1] % lanes == 0 else 1
    return value, Stream(shape, lanes, low.argument_format(node, "data_in_0"))


Pair = tuple[int, int]


def _pool_window(low: Lowerer, node: fx.Node) -> tuple[Pair, Pair, Pair]:
    if low.setting(node, "ceil_mode", False):
        raise low.refuse(node, "ceil_mode = True", "Allowed: ceil_mode = False")
    if set(np.atleast_1d(low.setting(node, "dilation", 1)).tolist()) != {1}:
        raise low.refuse(node, "a dilation", "Allowed: dilation = 1")
    kernel = low.setting(node, "kernel_size", None)
    stride = low.setting(node, "stride", None)
    padding = low.setting(node, "padding", 0)
    stride = kernel if stride in (None, ()) else stride
    return _pair(kernel, 2), _pair(stride, 2), _pair(padding, 2)


@lowers("fixed_max_pool")
def _max_pool(low: Lowerer, node: fx.Node) -> Value:
    value, source = _pooled(low, node)
    kernel, stride, padding = _pool_window(low, node)
    pool = MaxPool(source, kernel, stride, padding, format=source.format)
    return _pixels(low.add(node, pool, value), pool)


@lowers("fixed_avg_pool")
def _avg_pool(low: Lowerer, node: fx.Node) -> Value:
    value, source = _pooled(low, node)
    kernel, stride, padding = _pool_window(low, node)
    pool = AvgPool(source, kernel, stride, padding, format=low.result_format(node))
    return _pixels(low.add(node, pool, value), pool)


@lowers("global_avg_pool")
def _global_avg_pool(low: Lowerer, node: fx.Node) -> Value:
    size = low.setting(node, "output_size", 1)
    if set(np.atleast_1d(size).tolist()) != {1}:
        raise low.refuse(node, f"output_size = {size}", "Allowed: output_size = 1")
    value, source = _pooled(low, node)
    whole = (source.shape[1], source.shape[0])
    pool = AvgPool(source, whole, whole, format=low.result_format(node))
    return _pixels(low.add(node, pool, value), pool)


def _unary(low: Lowerer, node: fx.Node, make: Callable[[Stream], Component]) -> Value:
    value = low.operand(node)
    source = replace(low.stream(value), format=low.argument_format(node, "data_in_0"))
    return replace(value, wire=low.add(node, make(source), value))


@lowers("fixed_relu")
def _relu(low: Lowerer, node: fx.Node) -> Value:
    return _unary(low, node, lambda source: Relu(source, source.format))


@lowers("fixed_leaky_relu")
def _leaky_relu(low: Lowerer, node: fx.Node) -> Value:
    slope = slope_code(low.setting(node, "negative_slope", 0.01))
    number = low.result_format(node)
    return _unary(low, node, lambda source: LeakyRelu(source, number, slope, SLOPE_FRAC))


def slope_code(slope: float) -> int:
    """The slope in steps of 2**-SLOPE_FRAC, the nearest one."""
    return round(slope * (1 << SLOPE_FRAC))


@lowers("fixed_hardsigmoid")
def _hardsigmoid(low: Lowerer, node: fx.Node) -> Value:
    number = low.result_format(node)
    return _unary(low, node, lambda source: HardSigmoid(source, number))


@lowers("fixed_hardswish")
def _hardswish(low: Lowerer, node: fx.Node) -> Value:
    number = low.result_format(node)
    return _unary(low, node, lambda source: HardSwish(source, number))


@lowers("fixed_lut")
def _lut(low: Lowerer, node: fx.Node) -> Value:
    number = low.result_format(node)
    return _unary(low, node, lambda source: Lut(source, number, _function(node)))


def _function(node: fx.Node) -> Callable[[Any], Any]:
    """The node's own torch function on NumPy doubles."""

    def call(x: Any) -> Any:
        tensor = torch.from_numpy(np.asarray(x, dtype=np.float64))
        with torch.no_grad():
            return _apply(node, tensor).numpy()

    return call


def _apply(node: fx.Node, x: Tensor) -> Any:
    if node.op == "call_module":
        return _plain(node_module(node))(x)
    rest = [a for a in node.args if not isinstance(a, fx.Node)]
    if node.op == "call_method":
        return getattr(x, str(node.target))(*rest, **node.kwargs)
    return node.target(x, *rest, **node.kwargs)  # type: ignore[operator]


def _plain(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The forward of the torch layer that a quantised twin is derived from."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith("torch.nn"):
            return lambda x: cls.forward(module, x)  # type: ignore[attr-defined]
    return module


@lowers("fixed_batch_norm")
def _batch_norm(low: Lowerer, node: fx.Node) -> Value:
    module = node_module(node)
    value = low.operand(node)
    if len(value.shape) > 1:
        value = low.arrange(node, value, pixel_order(value.shape), _pixel_shape(value.shape))
    scale, shift = folded_batch_norm(module)
    if len(value.shape) == 1:
        scale, shift = scale[value.order], shift[value.order]
    formats = [low.argument_format(node, name) for name in ("weight", "bias")]
    source = replace(low.stream(value), format=low.argument_format(node, "data_in_0"))
    norm = BatchNorm(
        source,
        low.result_format(node),
        formats[0].encode(scale),
        formats[1].encode(shift),
        *formats,
    )
    return replace(value, wire=low.add(node, norm, value))


def folded_batch_norm(module: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift per channel that the statistics and affine parameters come to."""
    mean, var = (getattr(module, n).detach().double() for n in ("running_mean", "running_var"))
    weight, bias = (getattr(module, n) for n in ("weight", "bias"))
    scale = (var + module.eps).rsqrt()
    scale = scale if weight is None else scale * weight.detach().double()
    shift = -mean * scale
    shift = shift if bias is None else shift + bias.detach().double()
    return scale.cpu().numpy(), shift.cpu().numpy()


def _binary(low: Lowerer, node: fx.Node, kind: type[Add] | type[Sub] | type[Mul]) -> Value:
    left, right = low.operand(node, 0), low.operand(node, 1)
    if left.shape != right.shape:
        raise low.refuse(node, f"shapes {left.shape} and {right.shape}", "Allowed: equal shapes")
    if any(not isinstance(a, fx.Node) for a in node.args[:2]):
        raise low.refuse(node, "a constant operand", "Allowed: two tensors of the graph")
    right = low.arrange(node, right, left.order, low.stream(left).shape)
    stream = low.stream(left)
    formats = [low.argument_format(node, name) for name in ("data_in_0", "data_in_1")]
    a, b = (replace(stream, format=f) for f in formats)
    return replace(left, wire=low.add(node, kind(a, b, low.result_format(node)), left, right))


@lowers("fixed_add")
def _add(low: Lowerer, node: fx.Node) -> Value:
    return _binary(low, node, Add)


@lowers("fixed_sub")
def _sub(low: Lowerer, node: fx.Node) -> Value:
    return _binary(low, node, Sub)


@lowers("fixed_mul")
def _mul(low: Lowerer, node: fx.Node) -> Value:
    return _binary(low, node, Mul)


@lowers("wire")
def _wire(low: Lowerer, node: fx.Node) -> Value:
    """Dropout at inference, identity: the same stream."""
    return low.operand(node)


@lowers("wire_view")
def _view(low: Lowerer, node: fx.Node) -> Value:
    """Flatten and its like: the same stream under another shape."""
    value = low.operand(node)
    shape = tuple(mase_meta(node).common["results"]["data_out_0"]["shape"])[1:]
    if math.prod(shape) != len(value.order):
        raise low.refuse(node, f"a view as {shape}", "Allowed: views that leave the batch alone")
    return replace(value, shape=shape)


@lowers("wire_size")
def _size(low: Lowerer, node: fx.Node) -> None:
    """Sizes are known: their nodes leave no trace in hardware."""
    tensors = [a for a in node.all_input_nodes if a in low.values]
    if tensors and find_op(node) is OPS["getitem"]:
        raise low.refuse(node, "an index into a tensor", "Allowed: indices into sizes")


@lowers("wire_permute")
def _permute(low: Lowerer, node: fx.Node) -> Value:
    """Transposition: nothing moves until an op wants another order."""
    value = low.operand(node)
    axes = _axes(low, node, len(value.shape) + 1)
    if axes[0] != 0:
        raise low.refuse(node, "a permutation of the batch", "Allowed: any other dimensions")
    inner = [a - 1 for a in axes[1:]]
    old = np.arange(len(value.order)).reshape(value.shape).transpose(inner)
    place = np.empty(len(value.order), dtype=np.int64)
    place[old.reshape(-1)] = np.arange(len(value.order))
    return Value(value.wire, old.shape, place[value.order])


def _axes(low: Lowerer, node: fx.Node, dims: int) -> list[int]:
    rest: list[Any] = [a for a in node.args[1:] if not isinstance(a, fx.Node)]
    rest += [v for k, v in node.kwargs.items() if k in ("dims", "dim0", "dim1")]
    flat = [int(a) % dims for r in rest for a in (r if isinstance(r, tuple | list) else [r])]
    if len(flat) == dims and sorted(flat) == list(range(dims)):
        return flat
    if len(flat) == 2:
        axes = list(range(dims))
        axes[flat[0]], axes[flat[1]] = axes[flat[1]], axes[flat[0]]
        return axes
    raise low.refuse(node, f"dimensions {rest}", "Allowed: a permutation, or two dimensions")
