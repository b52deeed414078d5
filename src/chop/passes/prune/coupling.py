"""The dependency graph of channels: which rows and columns of which weights go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from chop.ir.dims import CHANNEL_TENSORS, LAYER_SETTINGS, permutation
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import UNKNOWN, Op, find_op, node_module
from chop.ir.reclass import mask_name
from chop.passes.prune.channel_labels import Axes, Labels, LabelSet, axes_in, frozen_axes
from chop.passes.rewrite.propagate import propagate

Kept = Callable[[Labels], int]
"""How many of a dimension's indices stay."""

Rewrite = Callable[[fx.Node, Kept], None]
Rule = Callable[["LabelledCall"], Any]
FindRule = Callable[[str], Rule | None]
"""The rule of a name in the op table's column `dims`; None where channels are not followed."""


class UnclearError(Exception):
    """A call whose channels a rule cannot follow; everything it touches is frozen."""


@dataclass
class Coupling:
    """What is known after all nodes have been seen.

    `values`: the axes of each node's result. `tensors`: parameters and buffers with their axes.
    `producers`: the layers whose outputs are labelled. `heads`: labels that a view split off.
    `sizes`: attributes of modules that repeat the size of a dimension. `rewrites`: nodes whose
    arguments repeat one. `by_query`: heads of keys and values stay, and of the query heads that
    share one as many go as of any other's; `repeats` are labels of such query heads, one for each
    place among those that share.
    """

    labels: LabelSet = field(default_factory=LabelSet)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    tensors: dict[int, tuple[Tensor, Axes]] = field(default_factory=dict)
    producers: list[tuple[str, Labels, nn.Parameter]] = field(default_factory=list)
    heads: list[Labels] = field(default_factory=list)
    sizes: list[tuple[nn.Module, str, Callable[[Kept], Any]]] = field(default_factory=list)
    rewrites: list[tuple[fx.Node, Rewrite]] = field(default_factory=list)
    by_query: bool = False
    repeats: list[Labels] = field(default_factory=list)

    def tensor(self, tensor: Tensor) -> Axes:
        """The axes of a parameter or buffer; one that is shared has one set."""
        if id(tensor) not in self.tensors:
            axes = Axes(tuple(self.labels.fresh(size) for size in tensor.shape))
            self.tensors[id(tensor)] = (tensor, axes)
        return self.tensors[id(tensor)][1]

    def parameter(self, module: nn.Module, name: str) -> Axes | None:
        """The axes of a module's own parameter or buffer; a mask shares those of its weight."""
        tensor: Tensor | None = module._parameters.get(name)
        if tensor is None:
            tensor = module._buffers.get(name)
        if tensor is None:
            return None
        axes = self.tensor(tensor)
        mask = module._buffers.get(mask_name(name))
        if mask is not None:
            self.tensors[id(mask)] = (mask, axes)
        return axes


@dataclass(frozen=True)
class LabelledCall:
    """One node, as a rule sees it."""

    node: fx.Node
    op: Op
    coupling: Coupling
    result: Any

    @property
    def labels(self) -> LabelSet:
        """The labels of the graph."""
        return self.coupling.labels

    @property
    def module(self) -> nn.Module | None:
        """The module that is called; None for functions and methods."""
        return node_module(self.node) if self.node.op == "call_module" else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, where that is one tensor."""
        if not isinstance(self.result, Axes):
            raise UnclearError
        return self.result.shape

    def value(self, argument: Any) -> Any:
        """What is known of an argument: axes, or None for what is no tensor."""
        return self.coupling.values.get(argument) if isinstance(argument, fx.Node) else None

    def operands(self) -> list[Axes]:
        """The tensors that the node reads, in order."""
        return [a for n in self.node.all_input_nodes for a in axes_in(self.value(n))]

    def first(self) -> Axes:
        """The first operand."""
        found = self.value(self.node.args[0]) if self.node.args else None
        operands = [found] if isinstance(found, Axes) else self.operands()
        if not operands:
            raise UnclearError
        return operands[0]

    def argument(self, *names: str) -> Any:
        """The argument of one of these names, or the module's attribute; None if there is none."""
        given = dict(named_arguments(self.node))
        for name in names:
            if name in given:
                return given[name]
        return next((getattr(self.module, n) for n in names if hasattr(self.module, n)), None)

    def parameter(self, name: str) -> Axes | None:
        """The axes of a parameter, be it the module's or an argument of a function."""
        if self.module is not None:
            return self.coupling.parameter(self.module, name)
        found = self.value(dict(named_arguments(self.node)).get(name))
        return found if isinstance(found, Axes) else None

    def named_operands(self) -> dict[str, Axes]:
        """The tensors that the node reads, by the names that dimension rules know them by."""
        parameters = dict.fromkeys((*self.op.parameters, *CHANNEL_TENSORS))
        found: dict[str, Axes] = {}
        inputs: list[Axes] = []
        for name, given in named_arguments(self.node):
            value = self.value(given)
            if name in parameters and isinstance(value, Axes):
                found[name] = value
                continue
            sources: list[fx.Node] = []
            fx.node.map_arg(given, sources.append)
            inputs += [axes for source in sources for axes in axes_in(self.value(source))]
        if self.module is not None:
            own = {name: self.coupling.parameter(self.module, name) for name in parameters}
            found |= {name: axes for name, axes in own.items() if axes is not None}
        return {f"data_in_{i}": axes for i, axes in enumerate(inputs)} | found

    def settings(self) -> dict[str, Any]:
        """The arguments that are no tensors, and the attributes that count as such."""
        given = {n: v for n, v in named_arguments(self.node) if not isinstance(v, fx.Node)}
        own = {n: getattr(self.module, n) for n in LAYER_SETTINGS if hasattr(self.module, n)}
        return given | own

    def permutation(self) -> tuple[int, ...] | None:
        """For a node that reorders dimensions: where each of the result comes from."""
        if self.op.dims != "permute":
            return None
        return permutation(self.node, len(self.first()), self._probed)

    def _probed(self, source: fx.Node, probe: Tensor) -> Tensor:
        if not isinstance(self.value(source), Axes):
            raise UnclearError  # a computed order
        return probe

    def produces(self, labels: Labels) -> None:
        """Note that a layer makes the channels `labels`."""
        weight = None if self.module is None else self.module._parameters.get("weight")
        if weight is not None:
            self.coupling.producers.append((str(self.node.target), labels, weight))

    def sets(self, name: str, size: Callable[[Kept], Any]) -> None:
        """Note that the module's attribute `name` repeats a size."""
        if self.module is not None:
            self.coupling.sizes.append((self.module, name, size))

    def rewrites(self, rewrite: Rewrite) -> None:
        """Note that the node's arguments repeat sizes."""
        self.coupling.rewrites.append((self.node, rewrite))


def couple(
    graph: MaseGraph, inputs: Mapping[str, Any], find_rule: FindRule, *, by_query: bool = False
) -> Coupling:
    """The channels of `graph`, at the shapes of `inputs`."""
    shapes = result_shapes(graph, inputs)
    coupling = Coupling(by_query=by_query)
    for node in graph.fx_graph.nodes:
        op = find_op(node, graph.custom_ops) or UNKNOWN
        call = LabelledCall(node, op, coupling, shapes[node])
        coupling.values[node] = _label(call, find_rule)
    return coupling


def result_shapes(graph: MaseGraph, inputs: Mapping[str, Any]) -> dict[fx.Node, Any]:
    """The result of each node, with frozen axes in place of tensors and None of all else."""
    shapes: dict[fx.Node, Any] = {}

    def axes_of(value: Any) -> Axes | None:
        return frozen_axes(value.shape) if isinstance(value, Tensor) else None

    def record(node: fx.Node, result: Any) -> None:
        shapes[node] = pytree.tree_map(axes_of, result)

    propagate(graph, inputs, record, real=False)
    return shapes


def _label(call: LabelledCall, find_rule: FindRule) -> Any:
    if call.node.op == "placeholder":
        return call.result
    if call.node.op == "get_attr":
        return call.coupling.tensor(_attribute(call.node))
    rule = find_rule(call.op.dims) if call.op.dims is not None else None
    try:
        value = _freeze(call) if rule is None else rule(call)
    except UnclearError:
        value = _freeze(call)
    return value if _fits(value, call.result) else _freeze(call)


def _freeze(call: LabelledCall) -> Any:
    """Freeze all that the node reads and gives."""
    for axes in call.operands():
        call.labels.freeze(*axes.dims)
    return call.result


def _fits(value: Any, result: Any) -> bool:
    shapes = [axes.shape for axes in axes_in(value)]
    return shapes == [axes.shape for axes in axes_in(result)]


def _attribute(node: fx.Node) -> Tensor:
    owner, _, name = str(node.target).rpartition(".")
    assert node.graph.owning_module is not None, f"node '{node.name}' has no module"
    tensor = getattr(node.graph.owning_module.get_submodule(owner), name)
    assert isinstance(tensor, Tensor), f"node '{node.name}' reads no tensor"
    return tensor
