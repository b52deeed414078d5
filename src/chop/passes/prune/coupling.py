"""The dependency graph of channels: the rows and columns of weights that go together.

Every index of every dimension of a tensor has a label, a small number. Coupling two dimensions
ties their labels index by index; indices that may not be removed are tied to `FROZEN`. A view that
splits a dimension into heads ties the labels within each head. After all nodes were visited, tied
labels form one group: remove its indices from every tensor, and all shapes still fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from chop.ir.dims import CHANNEL_TENSORS, LAYER_SETTINGS, permutation
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import UNKNOWN, Op, find_op, node_module
from chop.ir.reclass import mask_name
from chop.passes.rewrite.propagate import propagate

Labels = NDArray[np.int64]
FROZEN = 0


@dataclass(frozen=True)
class ChannelAxes:
    """Labels of a tensor: one array per dimension."""

    dims: tuple[Labels, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tensor."""
        return tuple(len(dim) for dim in self.dims)

    def __len__(self) -> int:
        return len(self.dims)


def frozen_axes(shape: Iterable[int]) -> ChannelAxes:
    """Return the axes of a tensor of which nothing may be removed."""
    return ChannelAxes(tuple(frozen_dim(size) for size in shape))


def frozen_dim(size: int) -> Labels:
    """Return the labels of a dimension of which nothing may be removed."""
    return np.full(size, FROZEN, dtype=np.int64)


class LabelSet:
    """Labels and the ties between them (a union-find structure)."""

    def __init__(self) -> None:
        self._parent = [FROZEN]

    def fresh(self, size: int) -> Labels:
        """Return labels that are tied to no others."""
        start = len(self._parent)
        self._parent.extend(range(start, start + size))
        return np.arange(start, start + size, dtype=np.int64)

    def find(self, label: int) -> int:
        """Return the label that represents all that are tied to `label`."""
        parent = self._parent
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    def tie(self, first: Labels, second: Labels) -> None:
        """Tie two dimensions index by index; one of size 1 is tied to every index."""
        if first is second or np.array_equal(first, second):
            return
        both = np.stack([x.reshape(-1) for x in np.broadcast_arrays(first, second)], axis=-1)
        for a, b in np.unique(both, axis=0).tolist():
            low, high = sorted((self.find(a), self.find(b)))
            self._parent[high] = low  # FROZEN is the lowest

    def freeze(self, *dims: Labels) -> None:
        """Forbid the removal of anything from these dimensions."""
        for dim in dims:
            self.tie(dim, frozen_dim(len(dim)))

    def is_frozen(self, dim: Labels) -> bool:
        """Return True if nothing of the dimension may be removed."""
        return all(self.find(label) == FROZEN for label in np.unique(dim).tolist())

    def roots(self) -> Labels:
        """Return the representative of each label."""
        return np.array([self.find(i) for i in range(len(self._parent))], dtype=np.int64)


def axes_in(value: Any) -> list[ChannelAxes]:
    """Return the axes of the tensors in a value, through tuples and lists."""
    if isinstance(value, ChannelAxes):
        return [value]
    if isinstance(value, tuple | list):
        return [axes for each in value for axes in axes_in(each)]
    return []


Kept = Callable[[Labels], int]
"""Return the number of a dimension's indices that stay."""

Rewrite = Callable[[fx.Node, Kept], None]
Rule = Callable[["LabelledCall"], Any]
FindRule = Callable[[str], Rule | None]
"""Return the rule of a name in the op table's column `dims`; None freezes the call."""


class UnclearError(Exception):
    """A call whose channels a rule cannot follow; everything it touches is frozen."""


@dataclass
class Coupling:
    """Labels of a graph's tensors, filled in while its nodes are visited in order.

    `values`: the axes of each node's result. `tensors`: parameters and buffers with their axes.
    `producers`: the layers whose outputs are labelled. `heads`: labels that a view split off.
    `sizes`: attributes of modules that repeat the size of a dimension. `rewrites`: nodes whose
    arguments repeat one. `by_query`: remove query heads only, the same number from every group
    that shares keys and values. `repeats`: labels of such query heads, by their place in the group.
    """

    labels: LabelSet = field(default_factory=LabelSet)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    tensors: dict[int, tuple[Tensor, ChannelAxes]] = field(default_factory=dict)
    producers: list[tuple[str, Labels, nn.Parameter]] = field(default_factory=list)
    heads: list[Labels] = field(default_factory=list)
    sizes: list[tuple[nn.Module, str, Callable[[Kept], Any]]] = field(default_factory=list)
    rewrites: list[tuple[fx.Node, Rewrite]] = field(default_factory=list)
    by_query: bool = False
    repeats: list[Labels] = field(default_factory=list)

    def tensor(self, tensor: Tensor) -> ChannelAxes:
        """Return the axes of a parameter or buffer; a shared one has one set."""
        if id(tensor) not in self.tensors:
            axes = ChannelAxes(tuple(self.labels.fresh(size) for size in tensor.shape))
            self.tensors[id(tensor)] = (tensor, axes)
        return self.tensors[id(tensor)][1]

    def parameter(self, module: nn.Module, name: str) -> ChannelAxes | None:
        """Return the axes of a module's own parameter or buffer; a mask has those of its weight."""
        tensor = {**module._buffers, **module._parameters}.get(name)
        if tensor is None:
            return None
        axes = self.tensor(tensor)
        mask = module._buffers.get(mask_name(name))
        if mask is not None:
            self.tensors[id(mask)] = (mask, axes)
        return axes


@dataclass(frozen=True)
class LabelledCall:
    """A node with its op and the labels recorded so far: the input of a rule."""

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
        if not isinstance(self.result, ChannelAxes):
            raise UnclearError
        return self.result.shape

    def value(self, argument: Any) -> Any:
        """Return the axes of an argument; None for anything that is no tensor."""
        return self.coupling.values.get(argument) if isinstance(argument, fx.Node) else None

    def operands(self) -> list[ChannelAxes]:
        """Return the tensors that the node reads, in order."""
        return [a for n in self.node.all_input_nodes for a in axes_in(self.value(n))]

    def first(self) -> ChannelAxes:
        """Return the first operand."""
        argument = self.value(self.node.args[0]) if self.node.args else None
        operands = [argument] if isinstance(argument, ChannelAxes) else self.operands()
        if not operands:
            raise UnclearError
        return operands[0]

    def argument(self, *names: str) -> Any:
        """Return the argument or module attribute of one of these names; None if there is none."""
        arguments = dict(named_arguments(self.node))
        for name in names:
            if name in arguments:
                return arguments[name]
        return next((getattr(self.module, n) for n in names if hasattr(self.module, n)), None)

    def named_operands(self) -> dict[str, ChannelAxes]:
        """Return the tensors that the node reads, by their names in the dimension rules."""
        names = dict.fromkeys((*self.op.parameters, *CHANNEL_TENSORS))
        parameters: dict[str, ChannelAxes] = {}
        inputs: list[ChannelAxes] = []
        for name, argument in named_arguments(self.node):
            value = self.value(argument)
            if name in names and isinstance(value, ChannelAxes):
                parameters[name] = value
                continue
            sources: list[fx.Node] = []
            fx.node.map_arg(argument, sources.append)
            inputs += [axes for source in sources for axes in axes_in(self.value(source))]
        if self.module is not None:
            own = {name: self.coupling.parameter(self.module, name) for name in names}
            parameters |= {name: axes for name, axes in own.items() if axes is not None}
        return {f"data_in_{i}": axes for i, axes in enumerate(inputs)} | parameters

    def settings(self) -> dict[str, Any]:
        """Return the arguments that are no tensors, and the module's settings."""
        arguments = {n: v for n, v in named_arguments(self.node) if not isinstance(v, fx.Node)}
        own = {n: getattr(self.module, n) for n in LAYER_SETTINGS if hasattr(self.module, n)}
        return arguments | own

    def permutation(self) -> tuple[int, ...] | None:
        """Return the source of each dimension of the result, for a node that reorders them."""
        if self.op.dims != "permute":
            return None

        def probed(source: fx.Node, probe: Tensor) -> Tensor:
            if not isinstance(self.value(source), ChannelAxes):
                raise UnclearError  # a computed order
            return probe

        return permutation(self.node, len(self.first()), probed)

    def produces(self, labels: Labels) -> None:
        """Record that a layer makes the channels `labels`."""
        weight = None if self.module is None else self.module._parameters.get("weight")
        if weight is not None:
            self.coupling.producers.append((str(self.node.target), labels, weight))

    def sets(self, name: str, size: Callable[[Kept], Any]) -> None:
        """Record that the module's attribute `name` repeats a size."""
        if self.module is not None:
            self.coupling.sizes.append((self.module, name, size))

    def rewrites(self, rewrite: Rewrite) -> None:
        """Record that the node's arguments repeat sizes."""
        self.coupling.rewrites.append((self.node, rewrite))


def couple(
    graph: MaseGraph, inputs: Mapping[str, Any], find_rule: FindRule, *, by_query: bool = False
) -> Coupling:
    """Return the labels of the channels of `graph`, at the shapes of `inputs`."""
    shapes = result_shapes(graph, inputs)
    coupling = Coupling(by_query=by_query)
    for node in graph.fx_graph.nodes:
        op = find_op(node, graph.custom_ops) or UNKNOWN
        call = LabelledCall(node, op, coupling, shapes[node])
        coupling.values[node] = _label(call, find_rule)
    return coupling


def result_shapes(graph: MaseGraph, inputs: Mapping[str, Any]) -> dict[fx.Node, Any]:
    """Return each node's result with frozen axes for tensors and None for everything else."""
    shapes: dict[fx.Node, Any] = {}

    def axes_of(value: Any) -> ChannelAxes | None:
        return frozen_axes(value.shape) if isinstance(value, Tensor) else None

    def record(node: fx.Node, result: Any) -> None:
        shapes[node] = pytree.tree_map(axes_of, result)

    propagate(graph, inputs, record, real=False)
    return shapes


def _label(call: LabelledCall, find_rule: FindRule) -> Any:
    if call.node.op == "placeholder":
        return call.result
    if call.node.op == "get_attr":
        return call.coupling.tensor(
            attrgetter(str(call.node.target))(call.node.graph.owning_module)
        )
    rule = find_rule(call.op.dims) if call.op.dims is not None else None
    try:
        value = _freeze(call) if rule is None else rule(call)
    except UnclearError:
        value = _freeze(call)
    shapes = [axes.shape for axes in axes_in(value)]
    return value if shapes == [axes.shape for axes in axes_in(call.result)] else _freeze(call)


def _freeze(call: LabelledCall) -> Any:
    for axes in call.operands():
        call.labels.freeze(*axes.dims)
    return call.result
