"""Quantised parts of a graph, and runs with some of them in other formats or in none."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.ir.ops import node_module
from chop.ir.ops.compute import parameter_role
from chop.kernels.layers import PACKED_LAYERS
from chop.nn.modules.lora import LoRALinear, adapted_layer
from chop.nn.quantized.call_operands import (
    DATA_OUT,
    is_bypassed,
    quantize_arguments,
    quantize_value,
)
from chop.nn.quantized.functional import call_quantizers, is_quantized_function
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Bypass, Quantizer
from chop.passes.rewrite.propagate import bind_inputs

Formats = Mapping[str, Quantizer]
Call = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class QuantizedPart:
    """A layer, or a call of a function, that is quantised or packed.

    `nodes`: its calls. `formats`: those of its operands, empty if it is packed. `layer`: the layer
    inside an adapter.
    """

    nodes: tuple[fx.Node, ...]
    formats: Formats
    layer: nn.Module | None = None

    @property
    def name(self) -> str:
        """Path of a layer, or name of a function's node."""
        return str(self.nodes[0].target) if self.layer is not None else self.nodes[0].name

    @property
    def is_adapted(self) -> bool:
        """True if the layer has an adapter."""
        return isinstance(node_module(self.nodes[0]), LoRALinear) if self.layer else False

    @property
    def is_packed(self) -> bool:
        """True if its weight is stored as bytes only."""
        return isinstance(self.layer, PACKED_LAYERS)


def quantized_parts(graph: MaseGraph) -> Iterator[QuantizedPart]:
    """Yield the quantised or packed parts of the graph, in order."""
    callers: dict[int, list[fx.Node]] = {}
    for node in graph.fx_graph.nodes:
        if node.op == "call_module":
            callers.setdefault(id(adapted_layer(node_module(node))), []).append(node)
    visited: set[int] = set()
    for node in graph.fx_graph.nodes:
        if node.op == "call_function" and is_quantized_function(node.target):
            formats = call_quantizers(node.target, node.kwargs.get("config"))
            if not is_bypassed(formats.values()):
                yield QuantizedPart((node,), formats)
        elif node.op == "call_module":
            layer = adapted_layer(node_module(node))
            if id(layer) in visited:
                continue
            visited.add(id(layer))
            formats = layer.quantizers if isinstance(layer, QuantizedModule) else {}
            if isinstance(layer, PACKED_LAYERS) or not is_bypassed(formats.values()):
                yield QuantizedPart(tuple(callers[id(layer)]), formats, layer)


def has_rounded_weights(graph: MaseGraph) -> bool:
    """Return True if all weights with a format have values of it; False if none has a format."""
    layers = [part.layer for part in quantized_parts(graph) if part.layer is not None]
    if any(isinstance(layer, PACKED_LAYERS) for layer in layers):
        return True
    stored = [
        (layer.get_parameter(name).detach(), each.values)
        for layer in layers
        if isinstance(layer, QuantizedModule)
        for name, each in layer.stored_values().items()
        if parameter_role(name) == "weight"
    ]
    return bool(stored) and all(torch.equal(*pair) for pair in stored)


def without_formats(part: QuantizedPart) -> dict[str, Quantizer]:
    """Return a bypass for every operand."""
    return {role: Bypass() for role in part.formats}


def call_in(graph: MaseGraph, part: QuantizedPart, formats: Formats) -> dict[fx.Node, Call]:
    """Return the functions to call at the part's nodes to compute in other formats."""
    if part.layer is None:
        return {part.nodes[0]: _function_in(part.nodes[0], formats)}
    layer = part.layer
    assert isinstance(layer, QuantizedModule), f"{part.name} is packed"

    def call(node: fx.Node, *args: Any, **kwargs: Any) -> Any:
        before, layer.quantizers = layer.quantizers, dict(formats)
        try:
            return graph.model.get_submodule(str(node.target))(*args, **kwargs)
        finally:
            layer.quantizers = before

    return {node: functools.partial(call, node) for node in part.nodes}


def _function_in(node: fx.Node, formats: Formats) -> Call:
    compute = node.target.op.compute  # type: ignore[union-attr]

    def call(*args: Any, config: Any = None, **kwargs: Any) -> Any:
        inputs, options = quantize_arguments(compute.operands, formats, args, kwargs)
        return quantize_value(compute.function(*inputs, **options), formats[DATA_OUT])

    return call


class PartlyQuantized(fx.Interpreter):
    """Run of a graph with other calls in the place of some nodes."""

    def __init__(self, model: fx.GraphModule, instead: Mapping[fx.Node, Call]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.instead = instead

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, or the call that replaces it."""
        if n not in self.instead:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return self.instead[n](*args, **kwargs)


class FirstInputs(fx.Interpreter):
    """Run of a graph that stores the inputs of chosen nodes."""

    def __init__(self, model: fx.GraphModule, nodes: set[fx.Node]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.nodes = nodes
        self.inputs: dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; copy the arguments of a chosen one first."""
        if n in self.nodes:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            copies = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
            self.inputs[n] = (copies, dict(kwargs))
        return super().run_node(n)


ROUNDS = 5
"""Timed calls of each program; the fastest counts."""
SIMULATED = "float product of rounded operands (a simulation of the format)"
Program = Callable[[], Any]


def kernel_times(
    graph: MaseGraph,
    parts: Sequence[QuantizedPart],
    batch: Any,
    float_calls: Mapping[QuantizedPart, Mapping[fx.Node, Callable[..., Any]]],
) -> list[dict[str, Any]]:
    """Return one record per kind of part: its kernel, seconds, float seconds, and their ratio.

    Parts of one class, format and shapes are of one kind; the first of them is timed.
    """
    firsts = {part.nodes[0] for part in parts}
    run = FirstInputs(graph.model, firsts)
    run.run(*bind_inputs(graph, batch, "explain.data").values())
    kinds: dict[Any, list[QuantizedPart]] = {}
    for part in parts:
        kinds.setdefault(_kind(part, run.inputs[part.nodes[0]]), []).append(part)
    return [
        _timed(graph, same, run.inputs[same[0].nodes[0]], float_calls) for same in kinds.values()
    ]


def _kind(part: QuantizedPart, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    shapes = tuple(tuple(t.shape) for t in tensors_in(inputs))
    layer = part.layer or nn.Module()
    weights = tuple(tuple(t.shape) for t in (*layer.parameters(), *layer.buffers()))
    target = part.nodes[0].target if part.layer is None else type(part.layer)
    return target, tuple(part.formats.items()), shapes, weights


def _timed(
    graph: MaseGraph,
    same: Sequence[QuantizedPart],
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    float_calls: Mapping[QuantizedPart, Mapping[fx.Node, Callable[..., Any]]],
) -> dict[str, Any]:
    part, node = same[0], same[0].nodes[0]
    args, kwargs = inputs
    own: Any = node.target
    if part.layer is not None:
        own = graph.model.get_submodule(str(node.target))
    plain = float_calls[part][node]
    seconds, float_seconds = interleaved(
        lambda: own(*args, **kwargs), lambda: plain(*args, **kwargs)
    )
    first = next((t for t in tensors_in(args)), None)
    packed = f"packed {getattr(part.layer, 'format', 'int8')}"
    return {
        "layer": part.name,
        "alike": len(same),
        "kernel": packed if part.is_packed else SIMULATED,
        "device": "cpu" if first is None else first.device.type,
        "input": None if first is None else tuple(first.shape),
        "seconds": seconds,
        "float_seconds": float_seconds,
        "ratio": seconds / float_seconds,
    }


def interleaved(one: Program, other: Program) -> tuple[float, float]:
    """Return the fewest seconds of each; calls alternate, so that a busy moment slows both."""
    times: dict[Program, list[float]] = {one: [], other: []}
    for program in times:
        program()
    for _ in range(ROUNDS):
        for program, seconds in times.items():
            start = time.perf_counter()
            result = program()
            if any(isinstance(t, Tensor) and t.is_cuda for t in tensors_in(result)):
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return min(times[one]), min(times[other])
