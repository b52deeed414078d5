"""Call of a node on the local parts of its operands, and ops that differ on a part."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.distributed.gathered_layers import GATHERED, GatheredLayer
from chop.distributed.layouts import (
    PARTIAL,
    REPLICATE,
    Layout,
    Shape,
    Use,
    gradient_of,
    local_shape,
)
from chop.distributed.plan import Plan
from chop.distributed.program import PARAMETER, parameter_value, references, stored_tensors
from chop.distributed.strategies import Strategy
from chop.ir.expert_mixtures import EXPERTS, WEIGHTS, own_experts
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import Op, node_module
from chop.ir.split_rule import BIAS, FollowingTensor, ParameterCut, ParameterCuts, SplitRule

Layouts = tuple[Layout, ...]
Uses = tuple[Use, ...]
NOTHING = FollowingTensor("")
"""Split of a tensor that follows no operand."""


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that is on this device."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass
class LocalValue:
    """Local part of a value and its layouts; `shared`: its copy for all readers, if it has one.

    `name`: its name in the plan, empty for a value that the plan does not have.
    """

    local: Any
    layouts: Layouts
    name: str = ""
    shared: Any = None
    gathered_axis: int | None = None

    @property
    def own(self) -> Uses:
        """Layouts of the value and of its gradient; FSDP2 adds up the gradient along its axis."""
        uses = [Use(layout, gradient_of(layout)) for layout in self.layouts]
        if self.gathered_axis is not None:
            uses[self.gathered_axis] = GATHERED
        return tuple(uses)


class PartRunner(Protocol):
    """Interpreter of a part of the graph on this device, as a call sees it."""

    plan: Plan
    mesh: DeviceMesh
    env: dict[fx.Node, Any]
    module: Any
    parameters: Mapping[int, LocalValue]
    derived: Mapping[str, SplitRule]
    gathered: Mapping[str, GatheredLayer]
    totals: Mapping[str, Tensor]

    def read(self, value: LocalValue, uses: Uses, where: str) -> Any: ...

    def whole(self, local: Tensor, layouts: Layouts) -> Shape: ...

    def sizes(self, layouts: Layouts) -> list[tuple[Layout, int]]: ...

    def fetch_attr(self, target: str) -> Any: ...


class LocalCall:
    """Node with its operands in the layouts that it reads."""

    def __init__(self, runner: PartRunner, node: fx.Node, op: Op) -> None:
        self.runner, self.node, self.op = runner, node, op
        self.strategies = runner.plan.strategies[node.name]
        names = iter([name for name, _ in references(node, op)])
        self.operands: dict[str, Tensor] = {}
        self.read_before: dict[tuple[int, Uses], Any] = {}

        def read(source: fx.Node) -> Any:
            value = runner.env[source]
            return self._read(next(names), value) if isinstance(value, LocalValue) else value

        self.args, self.kwargs = fx.node.map_arg((node.args, node.kwargs), read)
        self.rule = runner.derived.get(str(node.target)) if node.op == "call_module" else None
        self.parameters: dict[str, Tensor] = {}
        if node.op == "call_module":
            unit = runner.gathered.get(str(node.target))
            later = unit.gathered.dims if unit is not None else {}
            for name, tensor in stored_tensors(node_module(node)).items():
                if id(tensor) in runner.parameters and name not in later:
                    self.parameters[name] = self._read(name, runner.parameters[id(tensor)])

    def _read(self, operand: str, value: LocalValue) -> Any:
        """Return an operand in its layouts; two operands with the same use share a conversion."""
        uses = self.runner.plan.uses(self.node.name, operand)
        key = (id(value), uses)
        if key not in self.read_before:
            self.read_before[key] = self.runner.read(value, uses, self.node.name)
        self.operands[operand] = self.read_before[key]
        return self.operands[operand]

    def run(self) -> Any:
        """Return the local part of the result."""
        if self.node.op == "get_attr":
            attribute = self.runner.fetch_attr(str(self.node.target))
            parameter = self.runner.parameters.get(id(attribute))
            return self._read(PARAMETER, parameter) if parameter is not None else attribute
        unit = self.runner.gathered.get(str(self.node.target))
        if unit is None or self.node.op != "call_module":
            return self._run()
        return unit(functools.partial(self._run_with, unit.gathered.axis), self.args, self.kwargs)

    def _run_with(self, axis: int, whole: Mapping[str, Tensor], args: Any, kwargs: Any) -> Any:
        """Run with parameters that FSDP2 has gathered, and the arguments that it returned."""
        before = tree_leaves((self.args, self.kwargs))
        after = dict(zip(map(id, before), tree_leaves((args, kwargs)), strict=True))
        self.operands = {name: after.get(id(t), t) for name, t in self.operands.items()}
        self.args, self.kwargs = args, kwargs
        for name, tensor in whole.items():
            stored = self.runner.plan.layouts(parameter_value(f"{self.node.target}.{name}"))
            layouts = (*stored[:axis], REPLICATE, *stored[axis + 1 :])
            value = LocalValue(local_part(tensor), layouts, gathered_axis=axis)
            self.parameters[name] = self._read(name, value)
        return self._run()

    def _run(self) -> Any:
        is_split = any(s.is_split for s in self.strategies)
        is_counted = self.node.name in self.runner.totals
        kernel = LOCAL_KERNELS.get(self.op.dims or "") if is_split or is_counted else None
        with self._own_random_numbers(is_split):
            if self.rule is not None:
                return self._derived(self.rule)
            return kernel(self) if kernel else self.plain(self.args, self.kwargs)

    def _derived(self, rule: SplitRule) -> Any:
        """Run a derived layer on its parts; one device adds the bias of a sum over devices.

        The bias stays a part of the graph on the others, so that all take part in its gradient.
        """
        module: Any = node_module(self.node)
        layer = module
        if hasattr(module, "for_parts"):
            layer = module.for_parts(self.parameters, self._cuts())
        added = [n for n in self.parameters if self._is_added_elsewhere(n, rule)]
        tensors = {**self.parameters, **dict.fromkeys(added)}
        result = torch.func.functional_call(layer, tensors, self.args, self.kwargs)  # type: ignore[arg-type]
        for name in added:
            bias = self.parameters[name]
            if bias.requires_grad:
                result = result + bias.masked_fill(bias.new_ones((), dtype=torch.bool), 0).sum()
        return result

    def _cuts(self) -> ParameterCuts:
        """Return this device's part of each parameter that is rounded whole."""
        cuts: dict[str, tuple[ParameterCut, ...]] = {}
        for name, dim in sorted({pair for s in self.strategies for pair in s.cuts.items()}):
            cuts[name] = (*cuts.get(name, ()), self._cut(name, dim))
        return cuts

    def _cut(self, name: str, dim: int) -> ParameterCut:
        def is_over(strategy: Strategy) -> bool:
            return strategy.cuts.get(name) == dim

        axes = zip(self.strategies, self.runner.mesh.shape, strict=True)
        parts = math.prod(devices for strategy, devices in axes if is_over(strategy))
        length = self.parameters[name].shape[dim] // parts
        return ParameterCut(dim, length * self.part(is_over), length)

    def _is_added_elsewhere(self, name: str, rule: SplitRule) -> bool:
        """Return True if another device adds the whole tensor `name` to a sum over devices."""
        if rule.tensors.get(name, NOTHING).operand != BIAS:
            return False

        def is_whole(strategy: Strategy) -> bool:
            return strategy.result == PARTIAL and strategy.use(name).layout == REPLICATE

        return self.part(is_whole) != 0

    def plain(self, args: Any, kwargs: Any) -> Any:
        """Run the unchanged op on `args`."""
        if self.parameters:
            module = node_module(self.node)
            return torch.func.functional_call(module, self.parameters, args, kwargs)
        return getattr(self.runner, self.node.op)(self.node.target, args, kwargs)

    @contextlib.contextmanager
    def _own_random_numbers(self, is_split: bool) -> Iterator[None]:
        """Seed each part of a split value differently, and each copy of a part the same."""
        is_random = self.op.is_random or (self.rule is not None and _has_dropout(self.node))
        if not (is_split and is_random and self.runner.module.training):
            yield
            return
        # a derived layer drops elements of its input
        split = (lambda s: s.result != REPLICATE) if self.rule is None else _splits_input
        seed = int(torch.randint(2**31, ())) + self.part(split)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield

    def part(self, is_over: Callable[[Any], bool]) -> int:
        """Return the index of this device's part over the axes that `is_over` selects."""
        index, mesh = 0, self.runner.mesh
        for axis, strategy in enumerate(self.strategies):
            if is_over(strategy):
                index = index * mesh.size(axis) + mesh.get_local_rank(axis)
        return index

    def local_result(self) -> Shape:
        """Return the shape of the local result of a node that only changes the shape."""
        local = self.operands["data_in_0"]
        layouts = tuple(u.layout for u in self.runner.plan.uses(self.node.name, "data_in_0"))
        whole = torch.empty(self.runner.whole(local, layouts), device="meta")
        args, kwargs = tree_map_only(
            Tensor, lambda t: whole if t is local else t, (self.args, self.kwargs)
        )
        shape = self.plain(args, kwargs).shape
        return local_shape(shape, self.runner.sizes(self.runner.plan.layouts(self.node.name)))


def _has_dropout(node: fx.Node) -> bool:
    layers = node_module(node).modules()
    return any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in layers)


def _splits_input(strategy: Strategy) -> bool:
    return strategy.use("data_in_0").layout != REPLICATE


def _reshape(call: LocalCall) -> Tensor:
    return call.operands["data_in_0"].reshape(call.local_result())


def _embedding(call: LocalCall) -> Any:
    """Look up the local rows; rows of other devices are zero here."""
    if all(s.name != "vocabulary" for s in call.strategies):
        return call.plain(call.args, call.kwargs)
    ids, weight = call.operands["data_in_0"], call.operands["weight"]
    rows = weight.shape[0]
    first = rows * call.part(lambda s: s.name == "vocabulary")
    settings = dict(named_arguments(call.node))
    if call.node.op == "call_module":
        settings = vars(node_module(call.node))
    padding: Any = settings.get("padding_idx")
    has_padding = padding is not None and first <= padding < first + rows
    local = (ids - first).clamp(0, rows - 1)
    vectors = F.embedding(local, weight, padding - first if has_padding else None)
    is_local = (ids >= first) & (ids < first + rows)
    return torch.where(is_local[..., None], vectors, 0.0)


LOSS_SETTINGS = {"ignore_index": -100, "label_smoothing": 0.0}
"""Settings of a loss of classes that do not depend on how terms are reduced, with defaults."""


def _class_loss(call: LocalCall) -> Tensor:
    """Return this device's term of the loss; labels are whole, so all devices can count them."""
    logits, labels = call.operands["data_in_0"], call.operands["data_in_1"]
    own, weight = dict(named_arguments(call.node)), call.operands.get("data_in_2")
    if call.node.op == "call_module":
        own = vars(node_module(call.node))
        weight = node_module(call.node)._buffers.get("weight")
    settings: Any = {name: own.get(name, default) for name, default in LOSS_SETTINGS.items()}
    first = len(logits) * call.part(_splits_input)
    part = labels[first : first + len(logits)]
    total = F.cross_entropy(logits, part, weight, reduction="sum", **settings)
    if own.get("reduction", "mean") == "sum":
        return total
    if call.node.name in call.runner.totals:  # the rows here are a part of the batch
        return total / call.runner.totals[call.node.name]
    counted = labels[labels != settings["ignore_index"]]
    return total / (len(counted) if weight is None else weight[counted].sum())


def _expert_mixture(call: LocalCall) -> Any:
    """Run this device's experts; the results of all devices are added."""
    if all(s.name != EXPERTS for s in call.strategies):
        return call.plain(call.args, call.kwargs)
    weights = call.parameters[WEIGHTS[0]], call.parameters[WEIGHTS[1]]
    first = len(weights[0]) * call.part(lambda s: s.name == EXPERTS)
    tokens, chosen, factors = (call.operands[f"data_in_{i}"] for i in range(3))
    return own_experts(node_module(call.node), tokens, chosen, factors, weights, first)


LOCAL_KERNELS: dict[str, Callable[[LocalCall], Any]] = {
    "reshape": _reshape,
    "regroup": _reshape,
    "unflatten": _reshape,
    "expand": lambda call: call.operands["data_in_0"].expand(call.local_result()),
    "embedding": _embedding,
    "class_loss": _class_loss,
    "expert_mixture": _expert_mixture,
}
"""Dimension rules whose split op differs from the same op on the local parts."""
