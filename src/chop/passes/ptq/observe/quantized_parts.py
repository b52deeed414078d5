"""Quantised parts of a graph, and runs with some of them in other formats or in none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
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

Formats = Mapping[str, Quantizer]
Call = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Part:
    """A layer, or a call of a function, that is quantised or packed.

    `nodes` are those that call it; `formats` of its operands, none where it is packed; `layer` is
    the one within an adapter.
    """

    nodes: tuple[fx.Node, ...]
    formats: Formats
    layer: nn.Module | None = None

    @property
    def name(self) -> str:
        """The path of a layer, the node's name of a function."""
        return str(self.nodes[0].target) if self.layer is not None else self.nodes[0].name

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter stands beside the layer."""
        return isinstance(node_module(self.nodes[0]), LoRALinear) if self.layer else False

    @property
    def is_packed(self) -> bool:
        """Whether its weight is there as bytes alone."""
        return isinstance(self.layer, PACKED_LAYERS)


def quantized_parts(graph: MaseGraph) -> Iterator[Part]:
    """What of the graph is quantised or packed, in the order in which it runs."""
    callers: dict[int, list[fx.Node]] = {}
    for node in graph.fx_graph.nodes:
        if node.op == "call_module":
            callers.setdefault(id(adapted_layer(node_module(node))), []).append(node)
    seen: set[int] = set()
    for node in graph.fx_graph.nodes:
        if node.op == "call_function" and is_quantized_function(node.target):
            formats = call_quantizers(node.target, node.kwargs.get("config"))
            if not is_bypassed(formats.values()):
                yield Part((node,), formats)
        elif node.op == "call_module" and id(layer := adapted_layer(node_module(node))) not in seen:
            seen.add(id(layer))
            formats = layer.quantizers if isinstance(layer, QuantizedModule) else {}
            if isinstance(layer, PACKED_LAYERS) or not is_bypassed(formats.values()):
                yield Part(tuple(callers[id(layer)]), formats, layer)


def without_formats(part: Part) -> dict[str, Quantizer]:
    """No format for any operand."""
    return {role: Bypass() for role in part.formats}


def call_in(graph: MaseGraph, part: Part, formats: Formats) -> dict[fx.Node, Call]:
    """What to call in the place of the part's nodes, for its operands to have these formats."""
    if part.layer is None:
        return {part.nodes[0]: _function_in(part.nodes[0], formats)}
    assert isinstance(part.layer, QuantizedModule), f"{part.name} is packed"
    return {n: _layer_in(part.layer, graph.model.get_submodule(str(n.target)), formats)
            for n in part.nodes}  # fmt: skip


def _function_in(node: fx.Node, formats: Formats) -> Call:
    compute = node.target.op.compute  # type: ignore[union-attr]

    def call(*args: Any, config: Any = None, **kwargs: Any) -> Any:
        inputs, options = quantize_arguments(compute.operands, formats, args, kwargs)
        return quantize_value(compute.function(*inputs, **options), formats[DATA_OUT])

    return call


def _layer_in(layer: QuantizedModule, module: nn.Module, formats: Formats) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        before, layer.quantizers = layer.quantizers, dict(formats)
        try:
            return module(*args, **kwargs)
        finally:
            layer.quantizers = before

    return call


class PartlyQuantized(fx.Interpreter):
    """Runs a graph, with other calls in the place of some nodes."""

    def __init__(self, model: fx.GraphModule, instead: Mapping[fx.Node, Call]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.instead = instead

    def run_node(self, n: fx.Node) -> Any:
        """As torch's, but for the nodes that something stands in for."""
        if n not in self.instead:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return self.instead[n](*args, **kwargs)


class FirstInputs(fx.Interpreter):
    """Runs a graph and keeps what chosen nodes are given."""

    def __init__(self, model: fx.GraphModule, nodes: set[fx.Node]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.nodes = nodes
        self.found: dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """As torch's; the arguments of a chosen node are copied first."""
        if n in self.nodes:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            copies = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
            self.found[n] = (copies, dict(kwargs))
        return super().run_node(n)
