"""Flow of a change along channels through a graph, from weights to the layers that can undo it.

A rotation of the residual stream is folded into the weights that write it and the weights that
read it; the nodes between must carry it. This is tested, not derived from the names of ops: the
graph runs on its example inputs with and without the change, and each value is compared. A value
may stay the same, or change in the same way along one dimension. Any other change must disappear
before a layer or the output reads the value.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.ir.reclass import reclassed
from chop.ir.trace.effects import is_in_place
from chop.log import get_logger
from chop.passes.ptq.observe.layer_inputs import groups_of
from chop.passes.ptq.observe.layerwise_run import own
from chop.passes.rewrite.propagate import bind_inputs, undisturbed
from chop.passes.rewrite.surgery import set_module

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
READERS = ("linear", *CONVOLUTIONS)
WRITERS = ("linear", "embedding", *CONVOLUTIONS)
Values = Mapping[fx.Node, Any]


class RefusedError(Exception):
    """A change cannot be undone; the text names the node and the reason."""


@dataclass(frozen=True)
class Change:
    """A linear map of each run of `size` elements along one dimension."""

    size: int
    apply: Callable[[Tensor], Tensor]  # along the last dimension, of `size`

    def __call__(self, x: Tensor, dim: int) -> Tensor:
        """Return `x` changed along `dim`, computed in double precision."""
        moved = x.double().movedim(dim, -1)
        runs = moved.reshape(*moved.shape[:-1], -1, self.size)
        return self.apply(runs).flatten(-2).movedim(-1, dim).to(x.dtype)


def rotation(matrix: Tensor) -> Change:
    """Return the change x -> x @ matrix."""
    return Change(len(matrix), lambda x: x @ matrix.to(x.device))


def scaling(factors: Tensor) -> Change:
    """Return the change x -> x * factors."""
    return Change(len(factors), lambda x: x * factors.to(x))


def centring(size: int) -> Change:
    """Return the change x -> x - mean(x)."""
    return Change(size, lambda x: x - x.mean(-1, keepdim=True))


class ExampleRun:
    """Values of a graph on its example inputs, and reruns of single nodes on other values."""

    def __init__(self, graph: MaseGraph, where: str) -> None:
        self.graph = graph
        self.nodes: list[fx.Node] = list(graph.fx_graph.nodes)
        inputs = bind_inputs(graph, None, where)
        self.values: dict[fx.Node, Any] = {}
        for node in self.nodes:
            if node.op == "placeholder":
                self.values[node] = inputs[str(node.target)]
            elif node.op != "output":
                self.values[node] = self.run(node, self.values)

    def run(self, node: fx.Node, values: Any) -> Any:
        """Return the result of `node` on `values`; in-place nodes write to copies."""
        model = self.graph.model
        interpreter = fx.Interpreter(model, garbage_collect_values=False)
        interpreter.extra_traceback = False
        interpreter.env = values
        if is_in_place(node) and not writes_for_others(node):
            interpreter.env = {n: own(values[n]) for n in node.all_input_nodes}
        with undisturbed(model):
            return interpreter.run_node(node)


def writes_for_others(node: fx.Node) -> bool:
    """Return True if a node writes to a value that other nodes read."""
    return is_in_place(node) and any(len(n.users) > 1 for n in node.all_input_nodes)


@dataclass
class Trail:
    """Path of a change: `writers` make it along a dimension, `readers` receive it last."""

    writers: Mapping[fx.Node, int]
    readers: Sequence[fx.Node] = ()
    dims: Mapping[fx.Node, int] = field(default_factory=dict)


def follow(
    run: ExampleRun, change: Change, writers: Mapping[fx.Node, int], *, extend: bool = True
) -> Trail:
    """Return the path of the change of `writers`.

    With `extend`, the writers of unchanged addends of a changed value join them.
    """
    return _Walk(run, change, dict(writers), extend).trail()


class _Walk:
    """One run with the change; `changed` has the values that differ."""

    def __init__(
        self, run: ExampleRun, change: Change, writers: dict[fx.Node, int], extend: bool
    ) -> None:
        self.run, self.change, self.writers, self.extend = run, change, writers, extend
        self.place = {node: i for i, node in enumerate(run.nodes)}
        self.changed: dict[fx.Node, Any] = {}
        self.dims: dict[fx.Node, int] = {}
        self.lost: dict[fx.Node, fx.Node] = {}
        self.readers: dict[fx.Node, None] = {}

    def trail(self) -> Trail:
        """Visit all nodes; go back whenever another writer is needed."""
        position = 0
        while position < len(self.run.nodes):
            more = self._visit(self.run.nodes[position])
            self.writers.update(more)
            position = min((self.place[n] for n in more), default=position + 1)
            if more:
                for state in (self.changed, self.dims, self.lost, self.readers):
                    for node in [n for n in state if self.place[n] >= position]:
                        del state[node]
        return Trail(self.writers, list(self.readers), self.dims)

    def _visit(self, node: fx.Node) -> dict[fx.Node, int]:
        inputs = [n for n in node.all_input_nodes if n in self.changed]
        more: dict[fx.Node, int] = {}
        # with groups, a convolution reads no channel with all of its weights
        if is_layer(node, READERS) and groups_of(node_module(node)) == 1:
            for source in inputs:
                last = self.run.values[source].dim() - 1
                dim = 1 if is_layer(node, CONVOLUTIONS) else last
                if self.dims.get(source) != dim:
                    self._refuse(source, f"is read by '{node.target}'")
                self.readers[node] = None
        elif inputs and node.op == "output":
            self._refuse(inputs[0], "is a result of the model")
        elif inputs:
            more = self._pass(node)
        if node in self.writers:
            dim = self.dims[node] = self.writers[node]
            self.changed[node] = self.change(self.run.values[node], dim)
        return more

    def _refuse(self, node: fx.Node, why: str) -> None:
        origin = self.lost.get(node, node)
        what = f"{origin.op} {getattr(origin.target, '__name__', origin.target)}"
        raise RefusedError(f"node '{origin.name}' ({what}) does not carry it on, and {why}")

    def _pass(self, node: fx.Node) -> dict[fx.Node, int]:
        """Run a node on changed operands; return writers that have to change too."""
        if writes_for_others(node):
            self._refuse(node, "writes to a value that others read")
        old = self.run.values[node]
        new = self.run.run(node, ChainMap(self.changed, self.run.values))
        if is_same(new, old):
            return {}
        dim = next((d for d in self._dims(old) if is_same(new, self.change(old, d))), None)
        if dim is not None:
            self.changed[node], self.dims[node] = self.change(old, dim), dim
            return {}
        more = self._unchanged_addends(node) if self.extend else {}
        self.changed[node] = new
        before = [self.lost[n] for n in node.all_input_nodes if n in self.lost]
        self.lost[node] = before[0] if before else node
        return more

    def _dims(self, value: Any) -> list[int]:
        """Return the dimensions along which a value may be changed, the last first."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return []
        return [d for d in reversed(range(value.dim())) if value.shape[d] % self.change.size == 0]

    def _unchanged_addends(self, node: fx.Node) -> dict[fx.Node, int]:
        """Return the writers behind operands that are unchanged while another is changed."""
        if not any(n in self.dims for n in node.all_input_nodes):
            return {}
        writers: dict[fx.Node, int] = {}
        for operand in node.all_input_nodes:
            if operand not in self.changed:
                writers |= writers_behind(self.run, operand, self.change.size)
        return {n: d for n, d in writers.items() if n not in self.writers}


def writers_behind(run: ExampleRun, node: fx.Node, size: int) -> dict[fx.Node, int]:
    """Return the weights that a value comes from, and the dimension where each writes `size`."""
    writers: dict[fx.Node, int] = {}
    visited, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        value = run.values.get(current)
        is_weight = current.op == "get_attr" or is_layer(current, WRITERS)
        if is_weight and isinstance(value, Tensor) and value.is_floating_point():
            dim = 1 if is_layer(current, CONVOLUTIONS) else -1
            if value.dim() >= abs(dim) and value.shape[dim] == size:
                writers[current] = dim % value.dim()
        elif isinstance(value, Tensor):
            new = [n for n in current.all_input_nodes if n not in visited]
            visited.update(new)
            waiting += new
    return writers


def is_layer(node: fx.Node, ops: tuple[str, ...]) -> bool:
    """Return True if a node calls a layer of one of the ops that has its own weight."""
    if node.op != "call_module":
        return False
    op = find_op(node)
    return op is not None and op.name in ops and "weight" in node_module(node)._parameters


def is_same(a: Any, b: Any, slack: float = 1.0) -> bool:
    """Return True if two values are equal up to `slack` times the rounding errors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if not a.is_floating_point():
            return bool(torch.equal(a, b))
        largest = float(_finite(b).abs().amax()) if b.numel() else 0.0
        allowed = torch.finfo(a.dtype).eps ** (2 / 3) * largest * slack
        return bool(((_finite(a) - _finite(b)).abs() <= allowed).all())
    are_sequences = isinstance(a, tuple | list) and isinstance(b, tuple | list)
    if are_sequences and len(a) == len(b) > 0:
        return all(is_same(x, y, slack) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _finite(x: Tensor) -> Tensor:
    return torch.nan_to_num(x.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)


logger = get_logger(__name__)


def check_calls(graph: MaseGraph, trail: Trail) -> None:
    """Raise if a module that would change is also called where it must not."""
    roles: dict[str, set[tuple[bool, bool]]] = {}
    for node in graph.fx_graph.nodes:
        if node.op == "call_module":
            role = (node in trail.writers, node in trail.readers)
            roles.setdefault(str(node.target), set()).add(role)
    for target, kinds in roles.items():
        if len(kinds) > 1:
            raise RefusedError(f"module '{target}' is called in several places, not all alike")


def apply_change(graph: MaseGraph, change: Change, trail: Trail, who: str) -> None:
    """Fold a change into the layers that write it and the layers that read it."""
    check_calls(graph, trail)
    shared = shared_parameters(graph)
    for target in dict.fromkeys(str(n.target) for n in trail.readers):
        layer = own_layer(graph, target, shared, who)
        layer.weight = _changed(layer.weight, change, 1)
    for node in {str(n.target): n for n in trail.writers}.values():
        if node.op == "get_attr":
            _write_parameter(graph, node, change)
            continue
        layer = own_layer(graph, str(node.target), shared, who)
        rows = 1 if isinstance(layer, nn.Embedding) else 0
        layer.weight = _changed(layer.weight, change, rows)
        if getattr(layer, "bias", None) is not None:
            layer.bias = _changed(layer.bias, change, 0)


def _write_parameter(graph: MaseGraph, node: fx.Node, change: Change) -> None:
    parent, _, name = str(node.target).rpartition(".")
    owner = graph.model.get_submodule(parent)
    old = getattr(owner, name)
    new = change(old.detach(), old.dim() - 1)
    if isinstance(old, nn.Parameter):
        setattr(owner, name, nn.Parameter(new, requires_grad=old.requires_grad))
    else:
        owner.register_buffer(name, new)


def own_layer(graph: MaseGraph, target: str, shared: dict[int, list[str]], who: str) -> Any:
    """Replace the layer at `target` by a copy whose tensors can be replaced; return the copy.

    Warn in the name of `who` of a weight that was shared; an empty `who` warns of nothing.
    """
    old = graph.model.get_submodule(target)
    name = f"{target}.weight"
    others = [n for n in shared.get(id(old._parameters.get("weight")), []) if n != name]
    if others and who:
        logger.warning("%s: '%s' is no longer shared with '%s'.", who, name, others[0])
    copy = reclassed(old, type(old))
    set_module(graph, target, copy)
    return copy


def shared_parameters(graph: MaseGraph) -> dict[int, list[str]]:
    """Return the names of each parameter that has several, by the parameter's id."""
    names: dict[int, list[str]] = {}
    for name, parameter in graph.model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {key: several for key, several in names.items() if len(several) > 1}


def _changed(old: Tensor, change: Change, dim: int) -> nn.Parameter:
    return nn.Parameter(change(old.detach(), dim), requires_grad=old.requires_grad)


def add_to_bias(layer: Any, value: Tensor) -> None:
    """Add to the bias of a layer; create one if it has none."""
    weight: Tensor = layer.weight
    old = getattr(layer, "bias", None)
    base = torch.zeros(len(value), dtype=torch.double) if old is None else old.detach().double()
    new = (base.to(value) + value).to(weight.dtype)
    trains = weight.requires_grad if old is None else old.requires_grad
    layer.bias = nn.Parameter(new, requires_grad=trains)
