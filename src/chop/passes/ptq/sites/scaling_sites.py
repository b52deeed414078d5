"""Sites where factors can move from the inputs of linear layers into their weights.

The channels of a value are divided by factors where it is made (the weight of a norm, the rows of a
linear layer, one factor of a product), and the columns of every layer that reads it are multiplied
by them. What the model gives stays the same.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.dims import FACTS
from chop.ir.graph import MaseGraph
from chop.ir.ops import UNKNOWN, Op, find_op, node_module
from chop.ir.trace.environment import evaluation_mode
from chop.nn.quantized.convert import float_class_of
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.rewrite.propagate import bind_inputs
from chop.passes.rewrite.surgery import set_module

PROBES = 4
"""Random vectors that channels are recognised by: so many are never alike."""
NEAR = 1e-3


@dataclass(frozen=True)
class Scaled:
    """A tensor whose first dimension are channels to be scaled: the parameter `name` at `path`.

    Where `offset` is added to it before it is multiplied with, the sum is what is scaled.
    """

    path: str
    name: str
    offset: float = 0.0


@dataclass(frozen=True)
class Site:
    """A value, the linear layers that read it, and the tensors that make its channels.

    `index` has for each channel of the value the channel of those tensors it comes from.
    """

    value: fx.Node
    readers: tuple[fx.Node, ...]
    made_by: tuple[Scaled, ...]
    index: Tensor

    @property
    def layers(self) -> list[nn.Module]:
        """The layers that read the value."""
        return [node_module(node) for node in self.readers]


@dataclass(frozen=True)
class _Producer:
    made_by: tuple[Scaled, ...]
    channels: int
    probe: fx.Node | None = None
    """The layer whose channels are moved about on the way; None where they stay in place."""


def scaling_sites(graph: MaseGraph, batch: Any, where: str) -> list[Site]:
    """Every site of the graph, in the order in which it runs; `batch` shows how channels move."""
    finder = _Finder(graph)
    found: dict[fx.Node, tuple[tuple[fx.Node, ...], _Producer]] = {}
    for node in graph.fx_graph.nodes:
        readers = finder.linear_readers(node)
        if readers:
            producer = finder.producer(node, _columns(readers[0]), is_first=True)
            if producer is not None:
                found[node] = readers, producer
    moved = {value: p.probe for value, (_, p) in found.items() if p.probe is not None}
    indices = _moved_channels(graph, moved, batch, where) if moved else {}
    return list(_sites(found, indices))


def _sites(
    found: dict[fx.Node, tuple[tuple[fx.Node, ...], _Producer]], indices: dict[fx.Node, Tensor]
) -> Iterator[Site]:
    for value, (readers, producer) in found.items():
        if producer.probe is None:
            yield Site(value, readers, producer.made_by, torch.arange(producer.channels))
        elif value in indices:
            yield Site(value, readers, producer.made_by, indices[value])


def _columns(node: fx.Node) -> int:
    layer: Any = node_module(node)
    return int(layer.weight.shape[1])


class _Finder:
    """Walks the graph against its direction, as far as factors pass."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        parameters = graph.model.named_parameters(remove_duplicate=False)
        self.owners = Counter(id(p) for _, p in parameters)
        self.reads = Counter(
            str(n.target) for n in graph.fx_graph.nodes if n.op in ("call_module", "get_attr")
        )

    def op(self, node: fx.Node) -> Op:
        """The row of a node."""
        return find_op(node, self.graph.custom_ops) or UNKNOWN

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Who reads elements of a value, and not its size alone."""
        return [user for user in node.users if self.op(user).dims != FACTS]

    def linear_readers(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """All who read a value, if all are linear layers that may be scaled."""
        users = self.readers(node)
        is_fit = all(u.args[:1] == (node,) and self.is_own_linear(u) for u in users)
        alike = {_columns(u) for u in users} if is_fit else set()
        return tuple(users) if users and len(alike) == 1 else ()

    def is_own_linear(self, node: fx.Node) -> bool:
        """Whether a node calls a linear layer of which nobody else uses anything."""
        if node.op != "call_module" or len(node.all_input_nodes) != 1:
            return False
        module = node_module(node)
        if float_class_of(module) is not nn.Linear or self.reads[str(node.target)] > 1:
            return False
        quantizers = module.quantizers.values() if isinstance(module, QuantizedModule) else ()
        is_stored = any(q.is_stored for q in quantizers)
        return not is_stored and self._is_own(str(node.target), module)

    def _is_own(self, path: str, module: nn.Module) -> bool:
        """Whether the parameters are plain, and nobody else's."""
        own = dict(module.named_parameters(recurse=False))
        is_plain = isinstance(own.get("weight"), nn.Parameter)
        return is_plain and all(
            self.owners[id(p)] == 1 and not self.reads[f"{path}.{name}"] for name, p in own.items()
        )

    def producer(
        self, node: fx.Node, channels: int, *, is_first: bool = False, is_moved: bool = False
    ) -> _Producer | None:
        """The tensors whose factors are those of `node`'s last dimension; None without any."""
        if not is_first and len(self.readers(node)) != 1:
            return None
        op = self.op(node)
        if node.op == "call_module" and op.dims == "linear":
            return self._rows(node, channels, is_moved=is_moved)
        if not is_moved and op.dims == "norm_last":
            return self._norm(node, channels)
        if not is_moved and node.op == "get_attr":
            return self._parameter(node, channels)
        if not is_moved and op.name == "add":
            return self._shifted(node, channels)
        moves = is_moved or op.dims != "elementwise"
        places = op.carries_factor[-1:] if moves else op.carries_factor
        for place in places:  # of a product of matrices the second has the channels last
            given = node.args[place] if place < len(node.args) else None
            if isinstance(given, fx.Node):
                found = self.producer(given, channels, is_moved=moves)
                if found is not None:
                    return found
        return None

    def _rows(self, node: fx.Node, channels: int, *, is_moved: bool) -> _Producer | None:
        if not self.is_own_linear(node):
            return None
        module: Any = node_module(node)
        if not is_moved and module.out_features != channels:
            return None
        return _Producer(
            _tensors(node, module), module.out_features, probe=node if is_moved else None
        )

    def _norm(self, node: fx.Node, channels: int) -> _Producer | None:
        if node.op == "call_module":
            module: Any = node_module(node)
            is_own = self.reads[str(node.target)] == 1 and self._is_own(str(node.target), module)
            is_fit = is_own and module.weight.shape == (channels,)
            return _Producer(_tensors(node, module), channels) if is_fit else None
        given = {k: v for k, v in _norm_parameters(node).items() if v is not None}
        if not isinstance(given.get("weight"), fx.Node):
            return None
        found = [self._parameter(v, channels) for v in given.values()]
        if any(
            p is None or len(self.readers(v)) != 1
            for p, v in zip(found, given.values(), strict=True)
        ):
            return None
        return _Producer(tuple(t for p in found if p for t in p.made_by), channels)

    def _parameter(self, node: Any, channels: int) -> _Producer | None:
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            return None
        path, _, name = str(node.target).rpartition(".")
        value = self.graph.model.get_submodule(path)._parameters.get(name)
        is_own = self.reads[str(node.target)] == 1 and not self.reads[path]
        if value is None or not is_own or self.owners[id(value)] > 1 or value.shape != (channels,):
            return None
        return _Producer((Scaled(path, name),), channels)

    def _shifted(self, node: fx.Node, channels: int) -> _Producer | None:
        """A parameter and a number, as in norms that multiply by one plus their weight."""
        numbers = [a for a in node.args if isinstance(a, int | float)]
        nodes = [a for a in node.args if isinstance(a, fx.Node)]
        if len(numbers) != 1 or len(nodes) != 1 or node.kwargs:
            return None
        found = self.producer(nodes[0], channels)
        is_parameter = found is not None and len(found.made_by) == 1 and found.probe is None
        if found is None or not is_parameter or self.reads[found.made_by[0].path]:
            return None
        path, name = found.made_by[0].path, found.made_by[0].name
        return _Producer((Scaled(path, name, float(numbers[0])),), channels)


def _tensors(node: fx.Node, module: nn.Module) -> tuple[Scaled, ...]:
    names = [name for name in ("weight", "bias") if getattr(module, name, None) is not None]
    return tuple(Scaled(str(node.target), name) for name in names)


def _norm_parameters(node: fx.Node) -> dict[str, Any]:
    """The parameters of a call of a norm: (input, shape, weight, bias, …)."""
    names = ("input", "normalized_shape", "weight", "bias")
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return {name: given.get(name) for name in ("weight", "bias")}


# -- channels that move on the way ---------------------------------------------------------------


class _Probe(fx.Interpreter):
    """Runs the graph with vectors of our own in the place of some layers' results."""

    def __init__(self, model: fx.GraphModule, vectors: dict[fx.Node, Tensor]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.vectors = vectors
        self.seen: dict[fx.Node, Tensor] = {}
        self.wanted: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.vectors:
            result = self.vectors[n].to(result).expand_as(result)
        if n in self.wanted:
            self.seen[n] = result
        return result


def _moved_channels(
    graph: MaseGraph, moved: dict[fx.Node, fx.Node], batch: Any, where: str
) -> dict[fx.Node, Tensor]:
    """For each value the channel of its layer that each of its channels is.

    A layer's result is made constant over all positions, a number for each channel; attention
    averages over positions, so the numbers come through, and tell where each channel went. A value
    whose numbers are others is left out.
    """
    draw = torch.Generator().manual_seed(0)
    seen: dict[fx.Node, list[Tensor]] = {value: [] for value in moved}
    given: dict[fx.Node, list[Tensor]] = {layer: [] for layer in moved.values()}
    inputs = bind_inputs(graph, batch, where)
    with evaluation_mode(graph.model), torch.no_grad():
        for _ in range(PROBES):
            sizes = {layer: int(node_module(layer).out_features) for layer in given}  # type: ignore[arg-type]
            vectors = {layer: torch.randn(n, generator=draw) for layer, n in sizes.items()}
            probe = _Probe(graph.model, vectors)
            probe.wanted = set(moved)
            probe.run(
                *(inputs[str(n.target)] for n in graph.fx_graph.nodes if n.op == "placeholder")
            )
            for value in moved:
                seen[value].append(probe.seen[value].float().flatten(0, -2).cpu())
            for layer, vector in vectors.items():
                given[layer].append(vector)
    found = {v: _matched(torch.stack(seen[v]), torch.stack(given[moved[v]])) for v in moved}
    return {value: index for value, index in found.items() if index is not None}


def _matched(seen: Tensor, given: Tensor) -> Tensor | None:
    """For (probes, rows, channels) and (probes, sources) the source of each channel, if clear."""
    mean = seen.mean(1)
    if not bool(((seen - mean[:, None]).abs() < NEAR).all()):
        return None
    distance, index = torch.cdist(mean.T, given.T).min(1)
    return index if bool((distance < 10 * NEAR).all()) else None


# -- applying factors ----------------------------------------------------------------------------


def apply_factors(graph: MaseGraph, site: Site, factors: Tensor) -> None:
    """Divide the value's channels by `factors`, and multiply the columns of its readers.

    Channels that come from one channel of their layer have one factor. Layers are copies of the
    graph's own: the model it was made from keeps its weights.
    """
    sources = torch.ones(int(site.index.max()) + 1).index_copy(0, site.index, factors.cpu().float())
    for node in site.readers:
        module = _copied(graph, str(node.target))
        _set(module, "weight", lambda w: w * factors.to(w))
    for scaled in site.made_by:
        module = _owner(graph, scaled.path)
        _set(module, scaled.name, lambda p, s=scaled: _divided(p, sources, s.offset))


def _divided(value: Tensor, sources: Tensor, offset: float) -> Tensor:
    whole = torch.ones(len(value)).index_copy(0, torch.arange(len(sources)), sources).to(value)
    shape = [-1] + [1] * (value.dim() - 1)
    return (value + offset) / whole.reshape(shape) - offset


def _owner(graph: MaseGraph, path: str) -> nn.Module:
    is_called = any(n.op == "call_module" and n.target == path for n in graph.fx_graph.nodes)
    return _copied(graph, path) if is_called else graph.model.get_submodule(path)


def _copied(graph: MaseGraph, path: str) -> nn.Module:
    made = copy.deepcopy(graph.model.get_submodule(path))
    set_module(graph, path, made)
    return made


def _set(module: nn.Module, name: str, change: Any) -> None:
    old = module._parameters[name]
    assert old is not None, f"{name} is a parameter"
    setattr(module, name, nn.Parameter(change(old.detach()), requires_grad=old.requires_grad))
