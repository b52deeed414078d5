"""Graph as the planner sees it: values in execution order, with their operands.

A value is a parameter or the result of a node. A parameter precedes the first node that reads it.
A parameter that several nodes read is one value, so tied weights stay tied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.distributed.layouts import REPLICATE, Shape, local_shape
from chop.distributed.saved_tensors import (
    OWN_RESULT,
    InnerPart,
    SavedTensors,
    inner_parts,
    saved_tensors,
)
from chop.distributed.strategies import WHOLE, Strategy, derived_strategies, strategies
from chop.errors import GraphError
from chop.ir.dims import FACTS, LAYER_SETTINGS, ShapedCall, permutation
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import UNKNOWN, Op, Shapes, find_op, node_module, op_of_module
from chop.ir.split_rule import SplitRule, has_hooks, split_rule_of
from chop.ir.trace.effects import is_mutating, written_nodes

PARAMETER = "parameter"
"""Operand name of the parameter of a `get_attr` node."""


@dataclass(frozen=True)
class OperandSource:
    """Operand of a node, and the name of its value."""

    operand: str
    value: str


@dataclass(frozen=True)
class ProgramValue:
    """Parameter or result of a node, with the call that computes it."""

    name: str
    op: Op
    call: ShapedCall
    references: tuple[OperandSource, ...] = ()
    itemsize: int = 4
    operand_itemsizes: Mapping[str, int] = field(default_factory=dict)
    is_parameter: bool = False
    is_learnt: bool = False
    """True if it depends on a parameter; masks and positions do not, and stay replicated."""
    is_fixed: bool = False
    """True if it must be replicated: not learnt, or written in place."""
    is_view: bool = False
    has_gradient: bool = False
    split: SplitRule | None = None
    """Split of a layer that is derived from a plain one."""
    saved: SavedTensors = OWN_RESULT
    """Tensors that training stores because of this value."""
    inner: tuple[InnerPart, ...] = ()
    """Tensors of its own that training stores."""

    def layouts(self, devices: int) -> list[Strategy]:
        """Return the strategies to compute this value on `devices`."""
        if self.is_fixed:
            return [WHOLE]
        if self.is_parameter:
            shape = self.call.result
            even = [d for d, n in enumerate(shape) if devices > 1 and n and n % devices == 0]
            return [WHOLE, *(Strategy(f"split {d}", {}, f"S{d}") for d in even)]
        if self.split is not None:
            return derived_strategies(self.call, self.split, devices)
        return strategies(self.call, devices)

    def localised(self, others: list[tuple[Strategy, int]]) -> ProgramValue:
        """Return the part of this value on one device of the other mesh axes."""
        if not others:
            return self

        def local(shape: Shape, operand: str) -> Shape:
            return local_shape(shape, [(s.operands.get(operand, REPLICATE), n) for s, n in others])

        operands = {n: local(s, n) for n, s in self.call.operands.items()}
        layouts = [(s.result, devices) for s, devices in others]
        results = tuple(local_shape(s, layouts) for s in self.call.results)
        return replace(self, call=replace(self.call, operands=operands, results=results))

    def saves(self, name: str) -> bool:
        """Return True if training stores the value `name` because of this reader."""
        return any(r.value == name and r.operand in self.saved.operands for r in self.references)

    @property
    def size(self) -> int:
        """Bytes of the whole value."""
        return self.itemsize * sum(math.prod(s) for s in self.call.results)

    def operand_bytes(self) -> dict[str, int]:
        """Return the bytes of each whole operand."""
        sizes = self.operand_itemsizes
        return {n: sizes.get(n, 4) * math.prod(s) for n, s in self.call.operands.items()}

    def flops(self) -> int:
        """Return the floating-point operations of the whole call."""
        call = self.call if self.split is None else self.split.plain_call(self.call)
        op = self.op if self.split is None else self.split.plain_op
        roles = {n: s for n, s in call.operands.items() if not n.startswith("data_in_")}
        inputs = tuple(s for n, s in call.operands.items() if n.startswith("data_in_"))
        return op.flops(Shapes(inputs, call.results, roles, call.config))


@dataclass(frozen=True)
class Program:
    """Values of a graph, each after its operands."""

    values: tuple[ProgramValue, ...]

    def readers(self) -> dict[str, list[str]]:
        """Return the readers of each value, in order, each reader once."""
        readers: dict[str, list[str]] = {value.name: [] for value in self.values}
        for value in self.values:
            for name in dict.fromkeys(r.value for r in value.references):
                readers[name].append(value.name)
        return readers

    def saved(self) -> set[str]:
        """Return the values that a reader stores for the backward pass."""
        return {
            reference.value
            for value in self.values
            for reference in value.references
            if reference.operand in value.saved.operands
        }


def is_held(value: ProgramValue) -> bool:
    """Return True if the storage of a value is counted elsewhere, whoever reads it."""
    return value.saved.is_alias or value.saved.keeps_result


def is_found_stored(value: ProgramValue, is_saved: bool, is_published: bool) -> bool:
    """Return True if training stores a value in the layout in which its readers find it.

    `is_saved`: a reader stores it. `is_published`: one copy is for all readers.
    """
    return value.saved.keeps_result or (is_saved and (value.saved.is_alias or is_published))


def program_of(graph: MaseGraph) -> Program:
    """Return the values of an annotated graph; nodes without a tensor result are skipped."""
    builder = _ProgramBuilder(graph)
    for node in graph.fx_graph.nodes:
        builder.add(node)
    return _held_once(Program(tuple(builder.values.values())))


def _held_once(program: Program) -> Program:
    """Return the program in which a whole value that several readers store is stored once."""
    readers, saved = program.readers(), program.saved()
    values = []
    for value in program.values:
        if value.is_fixed and value.name in saved and len(readers[value.name]) > 1:
            value = replace(value, saved=replace(value.saved, keeps_result=True))
        values.append(value)
    return Program(tuple(values))


def parameter_value(name: str) -> str:
    """Return the value name of the parameter `name`; it never equals a node's name."""
    return f"parameter {name}"


def references(node: fx.Node, op: Op) -> list[tuple[str, fx.Node]]:
    """Return operand and source of each tensor argument, in the order of the call."""
    pairs: list[tuple[str, fx.Node]] = []
    count = 0
    for name, argument in named_arguments(node):
        sources: list[fx.Node] = []
        fx.node.map_arg(argument, sources.append)
        for source in sources:
            tensors = len(_tensors(source))
            if tensors and name in op.parameters and argument is source:
                pairs.append((name, source))
            elif tensors:
                pairs.append((f"data_in_{count}", source))
                count += tensors
    return pairs


def _tensors(node: fx.Node) -> list[ValueMeta]:
    return [r for r in (mase_meta(node).common.results or {}).values() if r.is_tensor]


class _ProgramBuilder:
    """Collector of the values of a graph, node by node."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        self.names = {id(t): name for name, t in stored_tensors(graph.model).items()}
        self.written = written_nodes(graph.fx_graph, graph.custom_ops)
        self.values: dict[str, ProgramValue] = {}
        nodes = graph.fx_graph.nodes
        self.ops = {node.name: find_op(node, graph.custom_ops) or UNKNOWN for node in nodes}
        self.sources = {node.name: references(node, self.ops[node.name]) for node in nodes}
        self.saved = saved_tensors(graph, self.sources)

    def add(self, node: fx.Node) -> None:
        tensors = _tensors(node)
        op, sources = self.ops[node.name], self.sources[node.name]
        if not tensors and (op.dims == FACTS or not sources):
            return
        parameters = self._parameters(node)
        operands = {n: self.values[s.name] for n, s in sources} | parameters
        is_learnt = any(v.is_parameter or v.is_learnt for v in operands.values())
        dtypes = [t.torch_dtype for t in tensors]
        is_float = any(dtype is not None and dtype.is_floating_point for dtype in dtypes)
        args = (mase_meta(node).common.args or {}).items()
        itemsizes = {n: _itemsize(v) for n, v in args if v.is_tensor}
        call, saved = _call(node, op, parameters), self.saved[node.name]
        self.values |= {v.name: v for v in parameters.values() if v.name not in self.values}
        self.values[node.name] = ProgramValue(
            name=node.name,
            op=op,
            call=call,
            references=tuple(OperandSource(n, v.name) for n, v in operands.items()),
            itemsize=_itemsize(tensors[0]) if tensors else 0,
            operand_itemsizes=itemsizes | {n: v.itemsize for n, v in parameters.items()},
            is_learnt=is_learnt,
            is_fixed=not is_learnt or node in self.written or is_mutating(node, op),
            is_view=op.is_view or node.op in ("get_attr", "output"),
            has_gradient=is_float and any(v.has_gradient for v in operands.values()),
            split=derived_rule(node_module(node)) if node.op == "call_module" else None,
            saved=saved,
            inner=inner_parts(saved.inner, call.operands, call.results),
        )

    def _parameters(self, node: fx.Node) -> dict[str, ProgramValue]:
        """Return the parameters that a node owns, by operand."""
        tensors: dict[str, Any] = {}
        if node.op == "get_attr":
            owner, _, leaf = str(node.target).rpartition(".")
            attribute = getattr(self.graph.model.get_submodule(owner), leaf)
            if isinstance(attribute, nn.Parameter):
                tensors[PARAMETER] = attribute
        elif node.op == "call_module":
            tensors.update(layer_tensors(node_module(node)))
        return {
            operand: ProgramValue(
                parameter_value(self.names[id(tensor)]),
                UNKNOWN,
                ShapedCall(None, {}, (tuple(tensor.shape),)),
                itemsize=tensor.element_size(),
                is_parameter=True,
                has_gradient=tensor.requires_grad,
            )
            for operand, tensor in tensors.items()
            if id(tensor) in self.names
        }


def _itemsize(tensor: ValueMeta) -> int:
    if tensor.torch_dtype is None:
        raise GraphError(f"a tensor of shape {tensor.shape} has no dtype.")
    return tensor.torch_dtype.itemsize


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def layer_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a layer that a plan places: parameters, and buffers of derived layers.

    Buffers that a layer writes are not among them.
    """
    rule = derived_rule(module)
    buffers = dict(module.named_buffers())
    if rule is not None:
        buffers = {n: b for n, b in buffers.items() if n in rule.tensors}
    elif not getattr(type(module), "has_constant_buffers", False):
        buffers = {}
    return {**dict(module.named_parameters()), **buffers}


def derived_rule(module: nn.Module) -> SplitRule | None:
    """Return the rule of a layer that is derived from a plain one; None for a plain layer."""
    op = op_of_module(module)
    is_plain = op is not None and type(module) in op.modules
    return None if is_plain else split_rule_of(module)


def _rule_of(node: fx.Node, op: Op) -> str | None:
    """Return the dimension rule of a node, or None if the node differs from the plain op.

    A derived layer has a `SplitRule` instead. A layer with hooks runs whole.
    """
    if node.op == "get_attr":
        return PARAMETER
    if node.op == "call_module":
        module = node_module(node)
        return op.dims if type(module) in op.modules and not has_hooks(module) else None
    plain = node.op != "call_function" or node.target in op.functions
    return op.dims if plain else None


def _call(node: fx.Node, op: Op, parameters: Mapping[str, ProgramValue]) -> ShapedCall:
    args = mase_meta(node).common.args or {}
    shapes = {n: tuple(v.shape or ()) for n, v in args.items() if v.is_tensor}
    config = {n: v.value for n, v in args.items() if not v.is_tensor}
    if node.op == "call_module":
        module = node_module(node)
        config |= {n: getattr(module, n) for n in LAYER_SETTINGS if hasattr(module, n)}
    return ShapedCall(
        _rule_of(node, op),
        shapes | {n: v.call.result for n, v in parameters.items()},
        tuple(tuple(t.shape or ()) for t in _tensors(node)),
        config,
        _permutation(node) if op.dims == "permute" else None,
    )


def _permutation(node: fx.Node) -> tuple[int, ...] | None:
    def value_of(source: fx.Node, probe: torch.Tensor) -> Any:
        results = mase_meta(source).common.results or {}
        return probe if _tensors(source) else next(iter(results.values())).value

    shape = (mase_meta(node).common.args or {})["data_in_0"].shape or []
    return permutation(node, len(shape), value_of)
