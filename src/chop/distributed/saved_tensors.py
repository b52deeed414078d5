"""Tensors that training stores between forward and backward, found by a run without data.

The graph runs once on meta tensors with autograd. A hook reports every tensor that a node stores
for its backward pass. Tensors are identified by their storage: a view needs the storage of its
source, and a tensor that two nodes store is held once. Parameters are held anyway.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.distributed.layouts import REPLICATE, Layout, Shape, sharded_dim
from chop.distributed.strategies import Strategy
from chop.errors import ChopError
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import find_op
from chop.log import get_logger

log = get_logger(__name__)
META = torch.device("meta")
MODEL = ""
"""Owner of the storages of parameters and buffers."""
CANNOT_RUN = (
    *(ArithmeticError, AttributeError, ChopError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""Errors of a node that needs the elements of a tensor."""
ATTENTION = "scaled_dot_product_attention"
FLASH = 1
"""Number by which torch names its fused attention on the CPU."""


@dataclass(frozen=True)
class InnerTensor:
    """Tensor that a node makes and stores for its own backward pass, such as a dropout's mask.

    `size`: bytes on one device without a mesh.
    """

    size: int
    shape: Shape


@dataclass(frozen=True)
class SavedTensors:
    """Tensors that a node stores for the backward pass.

    `is_alias`: the result has the storage of an operand or of a parameter. `keeps_result`: the node
    stores its result. `operands`: operands that it stores, or that a stored view of them needs.
    """

    is_alias: bool = False
    keeps_result: bool = True
    operands: frozenset[str] = frozenset()
    inner: tuple[InnerTensor, ...] = ()

    @property
    def holds_result(self) -> bool:
        """True if the result has a storage of its own that the node itself needs."""
        return self.keeps_result and not self.is_alias


OWN_RESULT = SavedTensors()
"""A node of which nothing is known: its result counts."""


def saved_tensors(
    graph: MaseGraph, sources: Mapping[str, Sequence[tuple[str, fx.Node]]]
) -> dict[str, SavedTensors]:
    """Return what each node of an annotated graph stores, by its name, in training mode.

    `sources`: operands of each node that has tensors.
    """
    run = _SavingRun(graph)
    run.start()
    return _Analysis(graph, sources, run).results()


@dataclass
class _NodeRecord:
    """Storages of the result of a node, and the tensors that it stored: storage, bytes, shape."""

    result: set[int] = field(default_factory=set)
    stored: dict[int, InnerTensor] = field(default_factory=dict)
    is_known: bool = True


class _SavingRun(fx.Interpreter):
    """Run of a graph on meta tensors; a node that cannot run there gets its annotated result."""

    def __init__(self, graph: MaseGraph) -> None:
        super().__init__(graph.model, garbage_collect_values=False)
        self.extra_traceback = False
        self.custom_ops = graph.custom_ops
        self.device = next((t.device.type for _, t in _tensors_of(graph.model)), "cpu")
        self.records: dict[str, _NodeRecord] = {}
        self.owner: dict[int, str] = {}
        self.held: list[Any] = []  # storages that are alive have different addresses
        self.current = _NodeRecord()

    def start(self) -> None:
        """Run all nodes; the model stays as it is."""
        model: Any = self.module
        runner = _Runner(model, self)
        tensors = {f"model.{name}": _empty(t) for name, t in _tensors_of(model)}
        for tensor in tensors.values():
            self._own(tensor, MODEL)
        hooks = saved_tensors_hooks(self._pack, lambda packed: packed)
        with _training(model), torch.enable_grad(), META, hooks, torch.random.fork_rng(devices=[]):
            torch.func.functional_call(runner, tensors, (), tie_weights=True)
        self.env = {}

    def run_all(self) -> None:
        """Run the nodes in order."""
        for node in self.graph.nodes:
            self.current = self.records[node.name] = _NodeRecord()
            result = self.env[node] = self._result(node)
            for tensor in _tensors(result):
                self.current.result.add(self._own(tensor, node.name))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(target, _on_meta(args), _on_meta(kwargs))

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_method(target, _on_meta(args), _on_meta(kwargs))

    def run_node(self, n: fx.Node) -> Any:
        op = find_op(n, self.custom_ops)
        if op is not None and op.name == ATTENTION and n.op == "call_function":
            values = {name: self._value(argument) for name, argument in named_arguments(n)}
            return _attention(n, self, values)
        return super().run_node(n)

    def plain(self, node: fx.Node) -> Any:
        """Run a node as any other."""
        return super().run_node(node)

    def _value(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda source: self.env[source])

    def _result(self, node: fx.Node) -> Any:
        """Return the result of a node; that of an input is its annotation."""
        if node.op == "placeholder":
            return self._annotated(node, is_learnt=False)
        try:
            return self.run_node(node)
        except CANNOT_RUN as error:
            log.debug("node %s does not run on meta tensors: %s", node.name, error)
        self.current.is_known = False
        self.current.stored.clear()
        before = [self.env[source] for source in node.all_input_nodes]
        is_learnt = any(tensor.requires_grad for tensor in _tensors(before))
        return self._annotated(node, is_learnt or node.op == "call_module")

    def _annotated(self, node: fx.Node, is_learnt: bool) -> Any:
        """Return what the annotation says of a result; a learnt one takes part in autograd."""
        metas = list((mase_meta(node).common.results or {}).values())
        values = tuple(_stand_in(meta, is_learnt) for meta in metas)
        return values[0] if len(values) == 1 else values

    def _own(self, tensor: Tensor, name: str) -> int:
        """Note the owner of a storage that is new."""
        storage = tensor.untyped_storage()
        place = int(storage._cdata)
        if place not in self.owner:
            self.owner[place] = name
            self.held.append(storage)
        return place

    def _pack(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.held.append(storage)
        inner = InnerTensor(storage.nbytes(), tuple(tensor.shape))
        self.current.stored.setdefault(int(storage._cdata), inner)


class _Runner(nn.Module):
    """Model with the run of its graph as forward."""

    def __init__(self, model: nn.Module, run: _SavingRun) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self) -> None:
        """Run the nodes."""
        self.run.run_all()


def _tensors_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers by name, those that layers share once."""
    return [*model.named_parameters(), *model.named_buffers()]


def _empty(tensor: Tensor) -> Tensor:
    """Return a tensor without data like `tensor`."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    return empty.requires_grad_(tensor.requires_grad)


def _stand_in(meta: ValueMeta, is_learnt: bool) -> Any:
    """Return a tensor without data by its annotation, or a value that is no tensor."""
    if not meta.is_tensor:
        return meta.value
    dtype = meta.torch_dtype or torch.float32
    empty = torch.empty(tuple(meta.shape or ()), dtype=dtype, device=META)
    return empty.requires_grad_(is_learnt and dtype.is_floating_point)


@contextlib.contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Set training mode; afterwards restore it, and what modules have noted meanwhile."""
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, attributes in before:
            module.__dict__.clear()
            module.__dict__.update(attributes)


def _on_meta(argument: Any) -> Any:
    """Replace every device in an argument by the meta device."""
    return tree_map_only(torch.device, lambda device: META, argument)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


# -- attention -------------------------------------------------------------------------------------


def _attention(node: fx.Node, run: _SavingRun, values: Mapping[str, Any]) -> Any:
    """Run an attention with the kernel that stores no scores, wherever there is one.

    On other devices than the CPU there always is. Meta tensors have the plain formula only.
    """
    operands = [values.get(name) for name in ("query", "key", "value")]
    mask, dropout = values.get("attn_mask"), float(values.get("dropout_p") or 0.0)
    is_causal, scale = bool(values.get("is_causal")), values.get("scale")
    if not all(isinstance(t, Tensor) and t.dim() == 4 for t in operands):
        return run.plain(node)
    if run.device == "cpu":
        parts = [None if t is None else _first_row(t) for t in (*operands, mask)]
        settings: dict[str, Any] = {"scale": scale, "enable_gqa": bool(values.get("enable_gqa"))}
        choice: Any = torch._fused_sdp_choice
        if choice(*parts, dropout, is_causal, **settings) != FLASH:
            return run.plain(node)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.empty_like(mask, dtype=values["query"].dtype)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return fused(*operands, dropout, is_causal, attn_mask=mask, scale=scale)[0]


def _first_row(tensor: Any) -> Tensor:
    """Return a tensor on the CPU with the shape of the first row, and memory that none touches."""
    shape = (1, *tensor.shape[1:]) if tensor.dim() == 4 else tensor.shape
    return torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


# -- results ---------------------------------------------------------------------------------------


class _Analysis:
    """Stored tensors of each node, from the storages that a run has seen."""

    def __init__(
        self,
        graph: MaseGraph,
        sources: Mapping[str, Sequence[tuple[str, fx.Node]]],
        run: _SavingRun,
    ) -> None:
        self.graph, self.sources, self.run = graph, sources, run
        self.operands: dict[str, set[str]] = {name: set() for name in run.records}
        self.keeps: set[str] = set()
        self.inner: dict[str, list[InnerTensor]] = {name: [] for name in run.records}
        self.seen: set[int] = set()

    def results(self) -> dict[str, SavedTensors]:
        """Return what each node stores, by its name."""
        nodes = list(self.graph.fx_graph.nodes)
        for node in nodes:
            self._add(node)
        for node in reversed(nodes):  # readers first
            self._pass_on(node)
        return {
            node.name: SavedTensors(
                self._is_alias(node.name),
                node.name in self.keeps,
                frozenset(self.operands[node.name]),
                tuple(self.inner[node.name]),
            )
            for node in nodes
        }

    def _add(self, node: fx.Node) -> None:
        """Note what a node itself stores."""
        record, name = self.run.records[node.name], node.name
        if node.op == "placeholder" or not record.is_known:
            self.keeps.add(name)
        if node.op == "output" or not record.is_known:  # outputs stay, and what is not known
            self.operands[name] |= {operand for operand, _ in self.sources.get(name, ())}
        for place, inner in record.stored.items():
            owner = self.run.owner.get(place)
            if owner is None and place not in self.seen:
                self.seen.add(place)
                self.inner[name].append(inner)
            elif owner is not None and owner != MODEL:
                self._store(node, place, owner)

    def _store(self, node: fx.Node, place: int, owner: str) -> None:
        """Note that a node stores the result of `owner`: its own, or that of operands."""
        if owner == node.name:
            self.keeps.add(owner)
            return
        reading = {n for n, source in self._reading(node) if place in self._places(source)}
        self.operands[node.name] |= reading
        if not reading:
            self.keeps.add(owner)

    def _pass_on(self, node: fx.Node) -> None:
        """Note that a view which is stored needs the storage of its source."""
        name = node.name
        is_stored = name in self.keeps or any(
            operand in self.operands[user.name]
            for user in node.users
            for operand, source in self._reading(user)
            if source is node
        )
        if not (self._is_alias(name) and is_stored):
            return
        places = self.run.records[name].result
        reading = {n for n, source in self._reading(node) if places & self._places(source)}
        self.operands[name] |= reading
        if not reading:
            self.keeps |= {self.run.owner[place] for place in places}

    def _is_alias(self, name: str) -> bool:
        places = self.run.records[name].result
        return bool(places) and all(self.run.owner[place] != name for place in places)

    def _reading(self, node: fx.Node) -> Sequence[tuple[str, fx.Node]]:
        return self.sources.get(node.name, ())

    def _places(self, node: fx.Node) -> set[int]:
        return self.run.records[node.name].result


# -- shares ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InnerPart:
    """Inner tensor of a node, divided like an operand (empty: the result) along some dimensions."""

    size: int
    operand: str
    dims: tuple[int, ...]


def inner_parts(
    tensors: Sequence[InnerTensor], operands: Mapping[str, Shape], results: Sequence[Shape]
) -> tuple[InnerPart, ...]:
    """Return how the inner tensors of a call are divided: like the most similar shape."""
    shapes = dict(operands)
    if len(results) == 1:
        shapes = {"": results[0], **shapes}
    sums: dict[tuple[str, tuple[int, ...]], int] = {}
    for tensor in tensors:
        grades = {name: _shared_dims(tensor.shape, shape) for name, shape in shapes.items()}
        name = max(
            grades, key=lambda name: (shapes[name] == tensor.shape, grades[name]), default=""
        )
        key = (name, tuple(range(grades.get(name, 0))))
        sums[key] = sums.get(key, 0) + tensor.size
    return tuple(InnerPart(size, *key) for key, size in sums.items())


def inner_layouts(part: InnerPart, option: Sequence[Strategy]) -> list[Layout]:
    """Return the layouts of an inner tensor of a node, one per mesh axis."""
    layouts = [
        s.operands.get(part.operand, REPLICATE) if part.operand else s.result for s in option
    ]
    return [layout if sharded_dim(layout) in part.dims else REPLICATE for layout in layouts]


def _shared_dims(shape: Shape, other: Shape) -> int:
    """Return how many leading dimensions of `other` a tensor has; `shape` may join some of them.

    >>> _shared_dims((2, 3, 4), (2, 3, 5)), _shared_dims((6, 4), (2, 3, 4))
    (2, 3)
    """
    for joined in range(1, len(other) + 1):
        if shape and math.prod(other[:joined]) == shape[0]:
            rest = zip(shape[1:], other[joined:], strict=False)
            return joined + len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], rest)))
    return 0
