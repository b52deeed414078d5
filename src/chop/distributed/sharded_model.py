"""Execution of a plan: parameters as DTensors on a device mesh, nodes on local parts.

Each process runs the same graph. A node reads its operands in the layouts of the plan and runs its
op on the local parts; its result has the layout of the plan. So the only communication is that of
the plan. It works on gloo (CPU) and nccl (GPU), under torchrun or spawned.

    mesh = init_device_mesh("cuda", plan.mesh.shape)
    model = apply_plan(graph, plan, mesh)
    model(input_ids=…).loss.backward()      # the whole batch on every device

Every process needs the same whole inputs and the same random seed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.utils._pytree import tree_any, tree_leaves, tree_map_only

from chop.distributed.gathered_layers import (
    GATHERED,
    GatheredLayer,
    gathered_layers,
    other_axes_of,
)
from chop.distributed.graph_parts import GraphPart, whole_graph
from chop.distributed.layouts import (
    PARTIAL,
    REPLICATE,
    Layout,
    Shape,
    Use,
    gradient_of,
    local_shape,
    sharded_dim,
    whole_shape,
)
from chop.distributed.plan import Plan
from chop.distributed.program import (
    PARAMETER,
    derived_rule,
    parameter_value,
    references,
    stored_tensors,
)
from chop.distributed.strategies import Strategy
from chop.errors import ConfigError, GraphError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import UNKNOWN, Op, find_op, node_module
from chop.ir.outputs import template_of
from chop.ir.split_rule import BIAS, FollowingTensor, ParameterCut, ParameterCuts, SplitRule

Layouts = tuple[Layout, ...]
Uses = tuple[Use, ...]
NOTHING = FollowingTensor("")
"""Split of a tensor that follows no operand."""


def placement(layout: Layout) -> Placement:
    """Return the placement of torch for a layout."""
    dim = sharded_dim(layout)
    if dim is not None:
        return Shard(dim)
    return Partial() if layout == PARTIAL else Replicate()


def apply_plan(
    graph: MaseGraph, plan: Plan, mesh: DeviceMesh, part: GraphPart | None = None
) -> ShardedModel:
    """Return the model of `graph` split over `mesh` by `plan`; `part`: only this stage of it.

    The graph must have the annotations it was planned with. It and its model do not change; a
    split parameter is copied in part.
    """
    if tuple(mesh.shape) != plan.mesh.shape:
        raise ConfigError(
            f"apply_plan: the plan is for a mesh of {list(plan.mesh.shape)} devices, got "
            f"{list(mesh.shape)}."
        )
    return ShardedModel(graph, plan, mesh, part)


class ShardedModel(nn.Module):
    """Model that runs by a plan; its inputs and outputs are whole tensors.

    Each device has the parameters of its part. Along one axis, FSDP2 gathers the parameters that
    the plan stores in parts and reads whole (`chop.distributed.gathered_layers`).
    """

    def __init__(
        self, graph: MaseGraph, plan: Plan, mesh: DeviceMesh, part: GraphPart | None = None
    ) -> None:
        super().__init__()
        self.plan, self.mesh, self.part = plan, mesh, part or whole_graph(graph)
        self.totals: Mapping[str, Tensor] = {}
        gathered = gathered_layers(graph, plan, mesh, self.part)
        along = {f"{t}.{n}": g.axis for t, g in gathered.items() for n in g.dims}
        own = _read_tensors(graph, self.part)
        copies: dict[int, Any] = {}
        for name, tensor in stored_tensors(graph.model).items():
            if id(tensor) not in own:
                copies[id(tensor)] = None
            elif parameter_value(name) in plan.strategies:
                layouts = plan.layouts(parameter_value(name))
                copies[id(tensor)] = _distribute(tensor, layouts, mesh, along.get(name))
        self.derived = _derived_layers(graph)
        self.model = copy.deepcopy(graph.model, copies)
        self.custom_ops = graph.custom_ops
        self.gathered = {
            target: GatheredLayer(self.model.get_submodule(target), each)
            for target, each in gathered.items()
        }
        self.units = nn.ModuleList(self.gathered.values())
        for unit in self.gathered.values():
            unit.shard(mesh)

    def forward(self, *received: Tensor, **inputs: Any) -> Any:
        """Return the outputs of the model, or of this part of it.

        Positional arguments are the inputs in order. A part that receives values has them
        as positional arguments, and returns the local tensors that the next part receives.
        """
        placeholders = [n for n in self.model.graph.nodes if n.op == "placeholder"]
        if not self.part.receives:
            names = [str(n.target) for n in placeholders]
            inputs = dict(zip(names, received, strict=False)) | inputs
        result = _Runner(self).run_part(received, inputs)
        template = template_of(self.model)
        return template.restore(result) if template and self.part.is_last else result

    def local_bytes(self) -> int:
        """Return the bytes on this device of what the plan places: parameters, packed weights."""
        parts = (_local(p) for p in self.placed().values())
        return sum(p.numel() * p.element_size() for p in parts)

    def placed(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that the plan places, by their names in the model."""
        tensors = stored_tensors(self.model).items()
        return {n: t for n, t in tensors if parameter_value(n) in self.plan.strategies}


def _input(node: fx.Node, inputs: Mapping[str, Any]) -> Any:
    for name in (str(node.target), node.name):
        if name in inputs:
            return inputs[name]
    if node.args:
        return node.args[0]
    raise GraphError(f"sharded model: no value for input '{node.target}'.")


def _derived_layers(graph: MaseGraph) -> dict[str, SplitRule]:
    """Return the rules of the derived layers that the graph calls, by their names."""
    nodes = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    rules = {str(n.target): derived_rule(node_module(n)) for n in nodes}
    return {target: rule for target, rule in rules.items() if rule is not None}


def _read_tensors(graph: MaseGraph, part: GraphPart) -> set[int]:
    """Return the ids of the parameters and buffers that the nodes of a part read."""
    tensors: list[Tensor] = []
    for node in graph.fx_graph.nodes:
        if node.name not in part.nodes:
            continue
        if node.op == "get_attr":
            owner, _, leaf = str(node.target).rpartition(".")
            tensors.append(getattr(graph.model.get_submodule(owner), leaf))
        elif node.op == "call_module":
            tensors += stored_tensors(node_module(node)).values()
    return {id(tensor) for tensor in tensors}


def _distribute(
    tensor: Tensor, layouts: Layouts, mesh: DeviceMesh, gathered_axis: int | None = None
) -> Tensor:
    """Return a parameter or buffer as a DTensor with the values of the first process.

    FSDP2 splits a parameter along `gathered_axis` by itself: it needs it whole along this axis.
    """
    if gathered_axis is not None:
        others = other_axes_of(mesh, gathered_axis)
        if others is None:
            return nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
        rest = tuple(layout for i, layout in enumerate(layouts) if i != gathered_axis)
        return _distribute(tensor, rest, others)
    data = distribute_tensor(_sendable(tensor.detach()), mesh, _placements(layouts))
    if not isinstance(tensor, nn.Parameter):
        return data.view(tensor.dtype) if data.dtype != tensor.dtype else data
    return nn.Parameter(data, requires_grad=tensor.requires_grad)


def _sendable(tensor: Tensor) -> Tensor:
    """Return a tensor that every back end can send: truth values as bytes."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _local(tensor: Tensor) -> Tensor:
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


class _Reshard(torch.autograd.Function):
    """Conversion of a local part to another layout, and of its gradient back."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mesh: DeviceMesh, before: Uses, after: Uses) -> Tensor:
        ctx.mesh, ctx.before, ctx.after = mesh, before, after
        layouts, targets = _layouts(before), _layouts(after)
        if layouts == targets:
            return local.view_as(local)
        return redistribute(local, mesh, layouts, targets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        before, after = (tuple(u.gradient for u in uses) for uses in (ctx.after, ctx.before))
        return redistribute(grads[0], ctx.mesh, before, after), None, None, None


def _layouts(uses: Uses) -> Layouts:
    return tuple(use.layout for use in uses)


def redistribute(local: Tensor, mesh: DeviceMesh, before: Layouts, after: Layouts) -> Tensor:
    """Return the local part in layouts `after` of the tensor with the part `local` in `before`."""
    if before == after:
        return local
    if local.dtype == torch.bool:
        return redistribute(_sendable(local), mesh, before, after).view(torch.bool)
    pairs = list(zip(before, after, strict=True))
    targets = [REPLICATE if a == PARTIAL != b else a for b, a in pairs]
    tensor = DTensor.from_local(local.contiguous(), mesh, _placements(before), run_check=False)
    part = tensor.redistribute(placements=_placements(targets)).to_local()
    part = part.wait() if isinstance(part, AsyncCollectiveTensor) else part
    # partial sums of a whole tensor: the first device has it, the others have zeros
    added = [axis for axis, (b, a) in enumerate(pairs) if a == PARTIAL != b]
    is_first = all(mesh.get_local_rank(axis) == 0 for axis in added)
    return part if is_first else torch.zeros_like(part)


def _placements(layouts: Sequence[Layout]) -> list[Placement]:
    return [placement(layout) for layout in layouts]


class _Runner(fx.Interpreter):
    """Interpreter of the graph on this device."""

    def __init__(self, owner: ShardedModel) -> None:
        super().__init__(owner.model)
        self.extra_traceback = False
        self.plan, self.mesh = owner.plan, owner.mesh
        self.custom_ops = owner.custom_ops
        self.parameters = {
            id(tensor): self._local_value(_local(tensor), parameter_value(name))
            for name, tensor in owner.placed().items()
        }
        self.derived, self.gathered, self.totals = owner.derived, owner.gathered, owner.totals
        self.part = owner.part

    def run_part(self, received: Sequence[Tensor], inputs: Mapping[str, Any]) -> Any:
        """Run the nodes of the part; return the outputs, or the local tensors to send."""
        nodes = {node.name: node for node in self.graph.nodes}
        self.env = {
            nodes[name]: self._received(tensor, name)
            for name, tensor in zip(self.part.receives, received, strict=False)
        }
        whole = (REPLICATE,) * len(self.mesh.shape)
        for name, facts in self.part.shapes.items():
            empty = torch.empty((), dtype=facts.torch_dtype, device=self.mesh.device_type)
            self.env[nodes[name]] = LocalValue(empty.expand(facts.shape), whole, name)
        result: Any = None
        for name in self.part.nodes:
            node = nodes[name]
            if node.op == "placeholder":
                result = self._hold(_input(node, inputs), whole)
            else:
                result = self.run_node(node)
            self.env[node] = result
        if self.part.is_last:
            return result
        return tuple(self._sent(self.env[nodes[name]]) for name in self.part.sends)

    def _received(self, tensor: Tensor, name: str) -> LocalValue:
        """Return a value of another part, in the layouts in which it is provided to readers."""
        shared = self.plan.published.get(name)
        layouts = self.plan.layouts(name) if shared is None else _layouts(shared)
        return LocalValue(tensor, layouts, name, tensor)

    def _sent(self, value: Any) -> Tensor:
        """Return the local tensor of a value as its readers get it."""
        if not (isinstance(value, LocalValue) and isinstance(value.local, Tensor)):
            name = getattr(value, "name", "")
            raise GraphError(f"pipeline: node '{name}' is cut, and it is not one tensor.")
        shared = self.plan.published.get(value.name)
        if shared is None or shared == value.own:
            return _sent_copy(value.local)
        if value.shared is None:
            value.shared = self._reshard(value.local, value.own, shared, value.name)
        return _sent_copy(value.shared)

    def run_node(self, n: fx.Node) -> Any:
        if n.name not in self.plan.strategies:
            return self._run_on_whole_shapes(n)
        call = _LocalCall(self, n, find_op(n, self.custom_ops) or UNKNOWN)
        if n.op == "output":
            return call.args[0]
        result = call.run()
        return self._local_value(result, n.name) if _has_tensor(result) else result

    def _local_value(self, local: Any, name: str) -> LocalValue:
        return LocalValue(local, self.plan.layouts(name), name)

    def _hold(self, value: Any, layouts: Layouts) -> Any:
        return LocalValue(value, layouts) if _has_tensor(value) else value

    def _run_on_whole_shapes(self, node: fx.Node) -> Any:
        """Run a node that returns sizes, dtypes or devices on empty tensors of whole shape.

        A value that is whole on every device is read itself: the node may return tensors of a
        shape that depends on the values, such as the places of a mask, which no plan has.
        """

        def stand_in(source: fx.Node) -> Any:
            value = self.env[source]
            if not isinstance(value, LocalValue):
                return value
            if all(layout == REPLICATE for layout in value.layouts):
                return value.local
            return tree_map_only(
                Tensor, lambda t: t.new_empty(()).expand(self.whole(t, value.layouts)), value.local
            )

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), stand_in)
        result = getattr(self, node.op)(node.target, args, kwargs)
        return self._hold(result, (REPLICATE,) * len(self.mesh.shape))

    def sizes(self, layouts: Layouts) -> list[tuple[Layout, int]]:
        """Return each layout with the number of devices of its axis."""
        return list(zip(layouts, self.mesh.shape, strict=True))

    def whole(self, local: Tensor, layouts: Layouts) -> Shape:
        """Return the shape of the whole tensor whose local part is `local`."""
        return whole_shape(local.shape, self.sizes(layouts))

    def read(self, value: LocalValue, uses: Uses, where: str) -> Any:
        """Return a value in the layouts that a node reads, from its published copy if any."""
        own = value.own
        shared = self.plan.published.get(value.name, own)
        if shared == own:
            return self._reshard(value.local, own, uses, where)
        if value.shared is None:
            value.shared = self._reshard(value.local, own, shared, where)
        return self._reshard(value.shared, shared, uses, where)

    def _reshard(self, local: Any, before: Uses, after: Uses, where: str) -> Any:
        """Convert every tensor of `local`."""
        if before == after:
            return local

        def convert(tensor: Tensor) -> Tensor:
            self._check_even(tensor, _layouts(before), _layouts(after), where)
            part: Tensor = _Reshard.apply(tensor, self.mesh, before, after)  # type: ignore[no-untyped-call]
            return part

        return tree_map_only(Tensor, convert, local)

    def _check_even(self, local: Tensor, before: Layouts, after: Layouts, where: str) -> None:
        shape, targets = self.whole(local, before), self.sizes(after)
        if whole_shape(local_shape(shape, targets), targets) != shape:
            raise GraphError(
                f"node '{where}': reads a tensor of shape {list(shape)} in layout "
                f"{list(after)}, which {list(self.mesh.shape)} devices do not divide. "
                "Plan with inputs of this shape, or give inputs of the planned one."
            )


def _sent_copy(local: Tensor) -> Tensor:
    """Return a tensor that can be sent, and that is no input of this part."""
    return local.contiguous().view_as(local)


def _has_tensor(value: Any) -> bool:
    return tree_any(lambda x: isinstance(x, Tensor), value)


class _LocalCall:
    """Node with its operands in the layouts that it reads."""

    def __init__(self, runner: _Runner, node: fx.Node, op: Op) -> None:
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
            value = LocalValue(_local(tensor), layouts, gathered_axis=axis)
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


def _reshape(call: _LocalCall) -> Tensor:
    return call.operands["data_in_0"].reshape(call.local_result())


def _embedding(call: _LocalCall) -> Any:
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


def _class_loss(call: _LocalCall) -> Tensor:
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


LOCAL_KERNELS: dict[str, Callable[[_LocalCall], Any]] = {
    "reshape": _reshape,
    "regroup": _reshape,
    "unflatten": _reshape,
    "expand": lambda call: call.operands["data_in_0"].expand(call.local_result()),
    "embedding": _embedding,
    "class_loss": _class_loss,
}
"""Dimension rules whose split op differs from the same op on the local parts."""


def whole_tensors(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gather each DTensor; every process must call this."""
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
