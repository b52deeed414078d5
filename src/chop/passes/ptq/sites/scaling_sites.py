"""Sites where factors can move from the inputs of linear layers into their weights.

The channels of a value are divided by factors at their source (the weight of a norm, the rows of a
linear layer, one factor of a product). The columns of every layer that reads the value are
multiplied by the same factors. The output of the model stays the same.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace
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
"""Number of random vectors that identify a channel: no two channels agree in all of them."""
NEAR = 1e-3
"""Largest difference of two equal probe values, for rounding errors of attention in float32."""


@dataclass(frozen=True)
class Scaled:
    """The parameter `name` of the module at `path`: a tensor with channels as first dimension.

    If the model adds the constant `offset` to it, the sum is scaled.
    """

    path: str
    name: str
    offset: float = 0.0


@dataclass(frozen=True)
class Site:
    """A value, the linear layers that read it, and the tensors that make its channels.

    `index`: for each channel of the value, the channel of those tensors it comes from.
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
    """The layer whose channels are moved on the way; None if they stay in place."""


def scaling_sites(graph: MaseGraph, batch: Any, where: str) -> list[Site]:
    """Return every site of the graph in order; `batch` is run to see how channels move."""
    finder = _Finder(graph)
    producers: dict[fx.Node, tuple[tuple[fx.Node, ...], _Producer]] = {}
    for node in graph.fx_graph.nodes:
        readers = finder.linear_readers(node)
        if readers:
            producer = finder.producer(node, _columns(readers[0]), is_first=True)
            if producer is not None:
                producers[node] = readers, producer
    moved = {value: p.probe for value, (_, p) in producers.items() if p.probe is not None}
    indices = _moved_channels(graph, moved, batch, where) if moved else {}
    indices |= {v: torch.arange(p.channels) for v, (_, p) in producers.items() if p.probe is None}
    return [
        Site(value, readers, producer.made_by, indices[value])
        for value, (readers, producer) in producers.items()
        if value in indices
    ]


def _columns(node: fx.Node) -> int:
    layer: Any = node_module(node)
    return int(layer.weight.shape[1])


class _Finder:
    """A walk against the direction of the graph, along nodes that carry factors."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        parameters = graph.model.named_parameters(remove_duplicate=False)
        self.owners = Counter(id(p) for _, p in parameters)
        self.reads = Counter(
            str(n.target) for n in graph.fx_graph.nodes if n.op in ("call_module", "get_attr")
        )

    def op(self, node: fx.Node) -> Op:
        """Return the op table's row of a node."""
        return find_op(node, self.graph.custom_ops) or UNKNOWN

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes that read elements of a value, not only its size."""
        return [user for user in node.users if self.op(user).dims != FACTS]

    def linear_readers(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Return all readers of a value if all are linear layers that may be scaled."""
        users = self.readers(node)
        is_fit = all(u.args[:1] == (node,) and self.is_own_linear(u) for u in users)
        alike = {_columns(u) for u in users} if is_fit else set()
        return tuple(users) if users and len(alike) == 1 else ()

    def is_own_linear(self, node: fx.Node) -> bool:
        """Return True if a node calls a linear layer whose parameters no other node uses."""
        if node.op != "call_module" or len(node.all_input_nodes) != 1:
            return False
        module = node_module(node)
        if float_class_of(module) is not nn.Linear or self.reads[str(node.target)] > 1:
            return False
        quantizers = module.quantizers.values() if isinstance(module, QuantizedModule) else ()
        is_stored = any(q.is_stored for q in quantizers)
        return not is_stored and self._is_own(str(node.target), module)

    def _is_own(self, path: str, module: nn.Module) -> bool:
        """Return True if the parameters are plain, and used by no other module or node."""
        own = dict(module.named_parameters(recurse=False))
        is_plain = isinstance(own.get("weight"), nn.Parameter)
        return is_plain and all(
            self.owners[id(p)] == 1 and not self.reads[f"{path}.{name}"] for name, p in own.items()
        )

    def producer(
        self, node: fx.Node, channels: int, *, is_first: bool = False, is_moved: bool = False
    ) -> _Producer | None:
        """Return the tensors that scale `node`'s last dimension; None if there are none."""
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
        for place in places:  # the second factor of a matrix product has the channels last
            source = node.args[place] if place < len(node.args) else None
            if isinstance(source, fx.Node):
                producer = self.producer(source, channels, is_moved=moves)
                if producer is not None:
                    return producer
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
        arguments = dict(zip(NORM_ARGUMENTS, node.args, strict=False)) | dict(node.kwargs)
        tensors: list[Any] = [
            arguments[n] for n in ("weight", "bias") if arguments.get(n) is not None
        ]
        if not isinstance(arguments.get("weight"), fx.Node):
            return None
        producers = [self._parameter(tensor, channels) for tensor in tensors]
        if None in producers or any(len(self.readers(tensor)) != 1 for tensor in tensors):
            return None
        return _Producer(tuple(t for p in producers if p for t in p.made_by), channels)

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
        """Return a parameter plus a number, as in norms that multiply by one plus their weight."""
        numbers = [a for a in node.args if isinstance(a, int | float)]
        nodes = [a for a in node.args if isinstance(a, fx.Node)]
        if len(numbers) != 1 or len(nodes) != 1 or node.kwargs:
            return None
        producer = self.producer(nodes[0], channels)
        if producer is None or len(producer.made_by) != 1 or producer.probe is not None:
            return None
        parameter = producer.made_by[0]
        if self.reads[parameter.path]:
            return None
        return _Producer((replace(parameter, offset=float(numbers[0])),), channels)


NORM_ARGUMENTS = ("input", "normalized_shape", "weight", "bias")
"""Leading arguments of the norms in torch.nn.functional."""


def _tensors(node: fx.Node, module: nn.Module) -> tuple[Scaled, ...]:
    names = [name for name in ("weight", "bias") if getattr(module, name, None) is not None]
    return tuple(Scaled(str(node.target), name) for name in names)


# -- channels that move on the way ---------------------------------------------------------------


class _Probe(fx.Interpreter):
    """A run of the graph with the results of some layers replaced by `vectors`."""

    def __init__(
        self, model: fx.GraphModule, vectors: dict[fx.Node, Tensor], outputs: Container[fx.Node]
    ) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.vectors, self.outputs = vectors, outputs
        self.results: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.vectors:
            result = self.vectors[n].to(result).expand_as(result)
        if n in self.outputs:
            self.results[n] = result
        return result


def _moved_channels(
    graph: MaseGraph, moved: dict[fx.Node, fx.Node], batch: Any, where: str
) -> dict[fx.Node, Tensor]:
    """Return for each value the channel of its layer that each of its channels comes from.

    A layer's result becomes a constant over all positions, one number per channel. Attention
    averages over positions, so the numbers identify the channels. Values with other numbers are
    left out.
    """
    draw = torch.Generator().manual_seed(0)
    results: dict[fx.Node, list[Tensor]] = {value: [] for value in moved}
    probes: dict[fx.Node, list[Tensor]] = {layer: [] for layer in moved.values()}
    sizes = {layer: int(node_module(layer).out_features) for layer in probes}  # type: ignore[arg-type]
    inputs = bind_inputs(graph, batch, where).values()
    with evaluation_mode(graph.model), torch.no_grad():
        for _ in range(PROBES):
            vectors = {layer: torch.randn(n, generator=draw) for layer, n in sizes.items()}
            probe = _Probe(graph.model, vectors, moved)
            probe.run(*inputs)
            for value in moved:
                results[value].append(probe.results[value].float().flatten(0, -2).cpu())
            for layer, vector in vectors.items():
                probes[layer].append(vector)
    sources = {v: _matched(torch.stack(results[v]), torch.stack(probes[moved[v]])) for v in moved}
    return {value: index for value, index in sources.items() if index is not None}


def _matched(results: Tensor, probes: Tensor) -> Tensor | None:
    """Return the source of each channel, from (probes, rows, channels) and (probes, sources)."""
    mean = results.mean(1)
    if not bool(((results - mean[:, None]).abs() < NEAR).all()):
        return None
    distance, index = torch.cdist(mean.T, probes.T).min(1)
    return index if bool((distance < 10 * NEAR).all()) else None


# -- applying factors ----------------------------------------------------------------------------


def apply_factors(graph: MaseGraph, site: Site, factors: Tensor) -> None:
    """Divide the value's channels by `factors`, and multiply the columns of its readers.

    Channels that come from one channel of their layer have one factor. Changed layers are copies,
    so the model that the graph was captured from keeps its weights.
    """
    sources = torch.ones(int(site.index.max()) + 1).index_copy(0, site.index, factors.cpu().float())
    for node in site.readers:
        _set(_copied(graph, str(node.target)), "weight", lambda w: w * factors.to(w))
    called = {str(n.target) for n in graph.fx_graph.nodes if n.op == "call_module"}
    for scaled in site.made_by:
        path = scaled.path
        module = _copied(graph, path) if path in called else graph.model.get_submodule(path)
        _set(module, scaled.name, lambda p, s=scaled: _divided(p, sources, s.offset))


def _divided(value: Tensor, sources: Tensor, offset: float) -> Tensor:
    whole = torch.ones(len(value)).index_copy(0, torch.arange(len(sources)), sources).to(value)
    shape = [-1] + [1] * (value.dim() - 1)
    return (value + offset) / whole.reshape(shape) - offset


def _copied(graph: MaseGraph, path: str) -> nn.Module:
    layer = copy.deepcopy(graph.model.get_submodule(path))
    set_module(graph, path, layer)
    return layer


def _set(module: nn.Module, name: str, change: Any) -> None:
    old = module._parameters[name]
    assert old is not None, f"{name} is a parameter"
    setattr(module, name, nn.Parameter(change(old.detach()), requires_grad=old.requires_grad))
