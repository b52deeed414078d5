"""A graph as the planner sees it: values in the order they are made, and who reads them how.

A value is a parameter or what a node gives. Parameters come first in this list just before the
first node that reads them; one that several nodes read is one value, so tied weights stay tied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from chop.distributed.layouts import REPLICATE, Layout, Shape, local_shape
from chop.distributed.strategies import WHOLE, Strategy, strategies
from chop.errors import GraphError
from chop.ir.dims import FACTS, LAYER_SETTINGS, ShapedCall, permutation
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import UNKNOWN, Op, Shapes, find_op, node_module
from chop.ir.trace.effects import is_mutating, written_nodes

PARAMETER = "parameter"
"""The operand by which a `get_attr` node reads its parameter."""


@dataclass(frozen=True)
class Reference:
    """An operand of a node, and the value it is."""

    operand: str
    value: str


@dataclass(frozen=True)
class Value:
    """A parameter or the result of a node, with the call that makes it."""

    name: str
    op: Op
    call: ShapedCall
    references: tuple[Reference, ...] = ()
    itemsize: int = 4
    operand_itemsizes: Mapping[str, int] = field(default_factory=dict)
    is_parameter: bool = False
    is_learnt: bool = False
    """Whether it depends on a parameter; masks and positions do not, and are kept whole."""
    is_fixed: bool = False
    """Only ever whole: not learnt, or written to in place."""
    is_view: bool = False
    has_gradient: bool = False

    def layouts(self, devices: int) -> list[Strategy]:
        """The ways to make this value on `devices`."""
        if self.is_fixed:
            return [WHOLE]
        if self.is_parameter:
            shape = self.call.result
            even = [d for d, n in enumerate(shape) if devices > 1 and n and n % devices == 0]
            return [WHOLE, *(Strategy(f"split {d}", {}, f"S{d}") for d in even)]
        return strategies(self.call, devices)

    def localised(self, others: list[tuple[Strategy, int]]) -> Value:
        """This value as one device of other mesh axes sees it."""

        def local(shape: Shape, name: str | None) -> Shape:
            layouts = [(_layout(s, name), devices) for s, devices in others]
            return local_shape(shape, layouts)

        if not others:
            return self
        operands = {n: local(s, n) for n, s in self.call.operands.items()}
        results = tuple(local(s, None) for s in self.call.results)
        return replace(self, call=replace(self.call, operands=operands, results=results))

    @property
    def size(self) -> int:
        """Bytes of the whole value."""
        return self.itemsize * sum(math.prod(s) for s in self.call.results)

    def operand_bytes(self) -> dict[str, int]:
        """Bytes of each whole operand."""
        sizes = self.operand_itemsizes
        return {n: sizes.get(n, 4) * math.prod(s) for n, s in self.call.operands.items()}

    def flops(self) -> int:
        """Floating-point operations of the whole call."""
        roles = {n: s for n, s in self.call.operands.items() if not n.startswith("data_in_")}
        inputs = tuple(s for n, s in self.call.operands.items() if n.startswith("data_in_"))
        return self.op.flops(Shapes(inputs, self.call.results, roles, self.call.config))


def _layout(strategy: Strategy, operand: str | None) -> Layout:
    return strategy.result if operand is None else strategy.operands.get(operand, REPLICATE)


@dataclass(frozen=True)
class Program:
    """The values of a graph, each after those it reads."""

    values: tuple[Value, ...]

    def readers(self) -> dict[str, list[str]]:
        """Who reads each value, in order, each reader once."""
        found: dict[str, list[str]] = {value.name: [] for value in self.values}
        for value in self.values:
            for name in dict.fromkeys(r.value for r in value.references):
                found[name].append(value.name)
        return found


def program_of(graph: MaseGraph) -> Program:
    """The values of an annotated graph; nodes that give no tensor are left out."""
    return Program(tuple(_Reader(graph).values()))


def parameter_value(name: str) -> str:
    """The name of the value that is the parameter `name`; never that of a node."""
    return f"parameter {name}"


def references(node: fx.Node, op: Op) -> list[tuple[str, fx.Node]]:
    """Operand and source of each tensor argument, in the order of the call."""
    found: list[tuple[str, fx.Node]] = []
    count = 0
    for name, given in named_arguments(node):
        sources: list[fx.Node] = []
        fx.node.map_arg(given, sources.append)
        for source in sources:
            tensors = len(_tensors(source))
            if tensors and name in op.parameters and given is source:
                found.append((name, source))
            elif tensors:
                found.append((f"data_in_{count}", source))
                count += tensors
    return found


def _tensors(node: fx.Node) -> list[ValueMeta]:
    return [r for r in (mase_meta(node).common.results or {}).values() if r.is_tensor]


class _Reader:
    """Goes through a graph once and gives its values."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        self.names = {id(p): n for n, p in graph.model.named_parameters()}
        self.written = written_nodes(graph.fx_graph, graph.custom_ops)
        self.known: dict[str, Value] = {}

    def values(self) -> Iterator[Value]:
        for node in self.graph.fx_graph.nodes:
            made = self._of_node(node)
            for value in made:
                if value.name not in self.known:
                    self.known[value.name] = value
                    yield value

    def _of_node(self, node: fx.Node) -> list[Value]:
        tensors = _tensors(node)
        op = find_op(node, self.graph.custom_ops) or UNKNOWN
        parameters = self._parameters(node)
        sources = references(node, op)
        if not tensors and (op.dims == FACTS or not sources):
            return []
        reads = {n: self.known[s.name] for n, s in sources} | parameters
        is_learnt = any(v.is_parameter or v.is_learnt for v in reads.values())
        value = Value(
            name=node.name,
            op=op,
            call=_call(node, op, parameters),
            references=tuple(Reference(n, v.name) for n, v in reads.items()),
            itemsize=_itemsize(tensors[0]) if tensors else 0,
            operand_itemsizes=_itemsizes(node, parameters),
            is_learnt=is_learnt,
            is_fixed=not is_learnt or node in self.written or is_mutating(node, op),
            is_view=op.is_view or node.op in ("get_attr", "output"),
            has_gradient=_is_float(tensors) and any(v.has_gradient for v in reads.values()),
        )
        return [*parameters.values(), value]

    def _parameters(self, node: fx.Node) -> dict[str, Value]:
        """The parameters a node reads by itself, by operand."""
        if node.op == "get_attr":
            found = {PARAMETER: _attribute(self.graph.model, str(node.target))}
        elif node.op == "call_module":
            found = dict(node_module(node).named_parameters())
        else:
            return {}
        return {n: self._parameter(p) for n, p in found.items() if id(p) in self.names}

    def _parameter(self, tensor: torch.Tensor) -> Value:
        name = parameter_value(self.names[id(tensor)])
        if name in self.known:
            return self.known[name]
        call = ShapedCall(None, {}, (tuple(tensor.shape),))
        return Value(
            name,
            UNKNOWN,
            call,
            itemsize=tensor.element_size(),
            is_parameter=True,
            has_gradient=tensor.requires_grad,
        )


def _attribute(model: nn.Module, target: str) -> Any:
    owner, _, leaf = target.rpartition(".")
    return getattr(model.get_submodule(owner), leaf)


def _itemsize(tensor: ValueMeta) -> int:
    if tensor.torch_dtype is None:
        raise GraphError(f"a tensor of shape {tensor.shape} has no dtype.")
    return tensor.torch_dtype.itemsize


def _itemsizes(node: fx.Node, parameters: Mapping[str, Value]) -> dict[str, int]:
    args = (mase_meta(node).common.args or {}).items()
    own = {n: _itemsize(v) for n, v in args if v.is_tensor}
    return own | {n: v.itemsize for n, v in parameters.items()}


def _is_float(tensors: list[ValueMeta]) -> bool:
    return any(t.torch_dtype is not None and t.torch_dtype.is_floating_point for t in tensors)


def _rule_of(node: fx.Node, op: Op) -> str | None:
    """The dimension rule of a node; none for a layer that is more than its op says.

    A quantised or adapted layer, or one with hooks, shares the op of the plain one but not its
    arithmetic: it runs whole.
    """
    if node.op == "get_attr":
        return PARAMETER
    if node.op == "call_module":
        module = node_module(node)
        hooks = (*module._forward_hooks, *module._forward_pre_hooks)
        return op.dims if type(module) in op.modules and not hooks else None
    plain = node.op != "call_function" or node.target in op.functions
    return op.dims if plain else None


def _call(node: fx.Node, op: Op, parameters: Mapping[str, Value]) -> ShapedCall:
    args = mase_meta(node).common.args or {}
    shapes = {n: tuple(v.shape or ()) for n, v in args.items() if v.is_tensor}
    return ShapedCall(
        _rule_of(node, op),
        shapes | {n: v.call.result for n, v in parameters.items()},
        tuple(tuple(t.shape or ()) for t in _tensors(node)),
        _config(node),
        _permutation(node, op),
    )


def _config(node: fx.Node) -> dict[str, Any]:
    args = mase_meta(node).common.args or {}
    given = {n: v.value for n, v in args.items() if not v.is_tensor}
    if node.op == "call_module":
        module = node_module(node)
        given |= {n: getattr(module, n) for n in LAYER_SETTINGS if hasattr(module, n)}
    return given


def _permutation(node: fx.Node, op: Op) -> tuple[int, ...] | None:
    if op.dims != "permute":
        return None

    def value_of(source: fx.Node, probe: torch.Tensor) -> Any:
        results = mase_meta(source).common.results or {}
        return probe if _tensors(source) else next(iter(results.values())).value

    shape = (mase_meta(node).common.args or {})["data_in_0"].shape or []
    return permutation(node, len(shape), value_of)
