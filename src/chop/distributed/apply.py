"""Run a plan: parameters as DTensors on a device mesh, every node on what this device holds.

Each process runs the same graph. A node reads its operands in the layouts the plan says, runs its
own op on the local parts, and its result is born in the layout the plan says: so the only talking
is the talking of the plan. It works on gloo (CPU) and nccl (GPU), under torchrun or spawned.

    mesh = init_device_mesh("cuda", plan.mesh.shape)
    model = apply_plan(graph, plan, mesh)
    model(input_ids=…).loss.backward()      # the whole batch on every device

Every process gets the same whole inputs and the same random seed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
from torch.utils._pytree import tree_any, tree_map_only

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
from chop.distributed.program import PARAMETER, parameter_value, references
from chop.errors import ConfigError, GraphError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import UNKNOWN, Op, find_op, node_module
from chop.ir.outputs import template_of

Layouts = tuple[Layout, ...]
Uses = tuple[Use, ...]


def placement(layout: Layout) -> Placement:
    """A layout as torch says it."""
    dim = sharded_dim(layout)
    if dim is not None:
        return Shard(dim)
    return Partial() if layout == PARTIAL else Replicate()


def apply_plan(graph: MaseGraph, plan: Plan, mesh: DeviceMesh) -> ShardedModel:
    """The model of `graph`, annotated as it was planned, split over `mesh` as `plan` says.

    The graph and its model are left as they are; a parameter that is split is copied in part.
    """
    if tuple(mesh.shape) != plan.mesh.shape:
        raise ConfigError(
            f"apply_plan: the plan is for a mesh of {list(plan.mesh.shape)} devices, got "
            f"{list(mesh.shape)}."
        )
    return ShardedModel(graph, plan, mesh)


class ShardedModel(nn.Module):
    """A model that runs as a plan says; takes and gives whole tensors, as the model does."""

    def __init__(self, graph: MaseGraph, plan: Plan, mesh: DeviceMesh) -> None:
        super().__init__()
        self.plan, self.mesh = plan, mesh
        split = {
            id(p): _distribute(p, plan.layouts(parameter_value(name)), mesh)
            for name, p in graph.model.named_parameters()
            if parameter_value(name) in plan.strategies
        }
        self.model = copy.deepcopy(graph.model, split)
        self.custom_ops = graph.custom_ops

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives on these inputs."""
        takes = [n for n in self.model.graph.nodes if n.op == "placeholder"]
        given = {str(n.target): a for n, a in zip(takes, args, strict=False)} | kwargs
        values = [_input(n, given) for n in takes]
        result = _Runner(self).run(*values)
        template = template_of(self.model)
        return template.restore(result) if template else result

    def local_bytes(self) -> int:
        """Bytes of parameters on this device."""
        parts = (_local(p) for p in self.parameters())
        return sum(p.numel() * p.element_size() for p in parts)


def _input(node: fx.Node, given: dict[str, Any]) -> Any:
    for name in (str(node.target), node.name):
        if name in given:
            return given[name]
    if node.args:
        return node.args[0]
    raise GraphError(f"sharded model: no value for input '{node.target}'.")


def _distribute(parameter: nn.Parameter, layouts: Layouts, mesh: DeviceMesh) -> nn.Parameter:
    tensor = distribute_tensor(parameter.detach(), mesh, _placements(layouts))
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass
class Held:
    """What this device holds of a value, its layouts, and copies of it in others."""

    local: Any
    layouts: Layouts
    copies: dict[Uses, Any] = field(default_factory=dict)


class _Reshard(torch.autograd.Function):
    """A local part in one layout from that in another; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mesh: DeviceMesh, before: Layouts, uses: Uses) -> Tensor:
        ctx.mesh, ctx.before, ctx.uses = mesh, before, uses
        after = tuple(u.layout for u in uses)
        return redistribute(local, mesh, before, after) if after != before else local.view_as(local)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        comes = tuple(u.gradient for u in ctx.uses)
        goes = tuple(gradient_of(layout) for layout in ctx.before)
        return redistribute(grads[0], ctx.mesh, comes, goes), None, None, None


def redistribute(local: Tensor, mesh: DeviceMesh, before: Layouts, after: Layouts) -> Tensor:
    """The local part in layouts `after` of the tensor whose part in `before` is `local`."""
    if before == after:
        return local
    pairs = list(zip(before, after, strict=True))
    reached = [REPLICATE if a == PARTIAL != b else a for b, a in pairs]
    tensor = DTensor.from_local(local.contiguous(), mesh, _placements(before), run_check=False)
    found = tensor.redistribute(placements=_placements(reached)).to_local()
    found = found.wait() if isinstance(found, AsyncCollectiveTensor) else found
    # a sum of which the first device holds the whole
    added = [axis for axis, (b, a) in enumerate(pairs) if a == PARTIAL != b]
    is_first = all(mesh.get_local_rank(axis) == 0 for axis in added)
    return found if is_first else torch.zeros_like(found)


def _placements(layouts: Sequence[Layout]) -> list[Placement]:
    return [placement(layout) for layout in layouts]


class _Runner(fx.Interpreter):
    """One run of the graph on this device."""

    def __init__(self, owner: ShardedModel) -> None:
        super().__init__(owner.model)
        self.extra_traceback = False
        self.plan, self.mesh = owner.plan, owner.mesh
        self.custom_ops = owner.custom_ops
        self.parameters = {
            id(p): Held(_local(p), self.plan.layouts(parameter_value(name)))
            for name, p in owner.model.named_parameters()
            if parameter_value(name) in self.plan.strategies
        }

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "placeholder":
            return self._hold(super().run_node(n), (REPLICATE,) * len(self.mesh.shape))
        op = find_op(n, self.custom_ops) or UNKNOWN
        if n.name not in self.plan.strategies:
            return self._run_on_facts(n)
        call = _LocalCall(self, n, op)
        if n.op == "output":
            return call.args[0]
        result = call.run()
        layouts = self.plan.layouts(n.name)
        return self._hold(result, layouts)

    def _hold(self, value: Any, layouts: Layouts) -> Any:
        return Held(value, layouts) if tree_any(lambda x: isinstance(x, Tensor), value) else value

    def _run_on_facts(self, node: fx.Node) -> Any:
        """A node that asks for sizes, types or devices: the answers are those of the whole."""

        def stand_in(source: fx.Node) -> Any:
            value = self.env[source]
            if not isinstance(value, Held):
                return value
            return tree_map_only(
                Tensor, lambda t: t.new_empty(()).expand(self.whole(t, value.layouts)), value.local
            )

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), stand_in)
        found = getattr(self, node.op)(node.target, args, kwargs)
        return self._hold(found, (REPLICATE,) * len(self.mesh.shape))

    def sizes(self, layouts: Layouts) -> list[tuple[Layout, int]]:
        """Each layout with the number of devices it is over."""
        return list(zip(layouts, self.mesh.shape, strict=True))

    def whole(self, local: Tensor, layouts: Layouts) -> Shape:
        """The shape of the tensor of which this device holds `local`."""
        return whole_shape(local.shape, self.sizes(layouts))

    def read(self, held: Held, uses: Uses, where: str) -> Any:
        """A value as a node reads it, brought to each layout once."""
        trivial = tuple(Use(layout, gradient_of(layout)) for layout in held.layouts)
        if uses == trivial:
            return held.local
        if uses not in held.copies:
            held.copies[uses] = tree_map_only(
                Tensor, lambda t: self._reshard(t, held.layouts, uses, where), held.local
            )
        return held.copies[uses]

    def _reshard(self, local: Tensor, layouts: Layouts, uses: Uses, where: str) -> Tensor:
        shape = self.whole(local, layouts)
        wanted = self.sizes(tuple(u.layout for u in uses))
        if whole_shape(local_shape(shape, wanted), wanted) != shape:
            raise GraphError(
                f"node '{where}': reads a tensor of shape {list(shape)} in layout "
                f"{[u.layout for u in uses]}, which {list(self.mesh.shape)} devices do not divide. "
                "Plan with inputs of this shape, or give inputs of the planned one."
            )
        found: Tensor = _Reshard.apply(local, self.mesh, layouts, uses)  # type: ignore[no-untyped-call]
        return found


class _LocalCall:
    """One node with its operands read: what is left is to run it on them."""

    def __init__(self, runner: _Runner, node: fx.Node, op: Op) -> None:
        self.runner, self.node, self.op = runner, node, op
        self.strategies = runner.plan.strategies[node.name]
        names = iter([name for name, _ in references(node, op)])
        self.operands: dict[str, Tensor] = {}

        def read(source: fx.Node) -> Any:
            value = runner.env[source]
            return self._read(next(names), value) if isinstance(value, Held) else value

        self.args, self.kwargs = fx.node.map_arg((node.args, node.kwargs), read)
        self.parameters = self._parameters()

    def _read(self, operand: str, held: Held) -> Any:
        uses = self.runner.plan.uses(self.node.name, operand)
        local = self.runner.read(held, uses, self.node.name)
        self.operands[operand] = local
        return local

    def _parameters(self) -> dict[str, Tensor]:
        """The parameters of the node's own module, as it reads them."""
        if self.node.op != "call_module":
            return {}
        named = node_module(self.node).named_parameters()
        held = {n: self.runner.parameters.get(id(p)) for n, p in named}
        return {n: self._read(n, h) for n, h in held.items() if h is not None}

    def run(self) -> Any:
        """The local part of the result."""
        if self.node.op == "get_attr":
            return self._attribute()
        is_split = any(s.is_split for s in self.strategies)
        kernel = LOCAL_KERNELS.get(self.op.dims or "") if is_split else None
        with self._own_random_numbers(is_split):
            return kernel(self) if kernel else self.plain(self.args, self.kwargs)

    def _attribute(self) -> Any:
        found = self.runner.fetch_attr(str(self.node.target))
        held = self.runner.parameters.get(id(found))
        return self._read(PARAMETER, held) if held is not None else found

    def plain(self, args: Any, kwargs: Any) -> Any:
        """The op as it is, on `args`."""
        if self.parameters:
            module = node_module(self.node)
            return torch.func.functional_call(module, self.parameters, args, kwargs)
        return getattr(self.runner, self.node.op)(self.node.target, args, kwargs)

    @contextlib.contextmanager
    def _own_random_numbers(self, is_split: bool) -> Iterator[None]:
        """Other random numbers on each part of a split value, the same on each copy of a part."""
        if not (is_split and self.op.is_random and self.runner.module.training):
            yield
            return
        seed = int(torch.randint(2**31, ())) + self.part(lambda s: s.result != REPLICATE)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield

    def part(self, is_over: Callable[[Any], bool]) -> int:
        """Which part this device has of what is split over the axes picked by `is_over`."""
        number = 0
        for axis, strategy in enumerate(self.strategies):
            if is_over(strategy):
                mesh = self.runner.mesh
                number = number * mesh.size(axis) + mesh.get_local_rank(axis)
        return number

    def local_result(self) -> Shape:
        """The shape of the local part of the result of a node that only changes shape."""
        local = self.operands["data_in_0"]
        layouts = tuple(u.layout for u in self.runner.plan.uses(self.node.name, "data_in_0"))
        whole = torch.empty(self.runner.whole(local, layouts), device="meta")
        args, kwargs = tree_map_only(
            Tensor, lambda t: whole if t is local else t, (self.args, self.kwargs)
        )
        shape = self.plain(args, kwargs).shape
        return local_shape(shape, self.runner.sizes(self.runner.plan.layouts(self.node.name)))


def _reshape(call: _LocalCall) -> Tensor:
    return call.operands["data_in_0"].reshape(call.local_result())


def _expand(call: _LocalCall) -> Tensor:
    return call.operands["data_in_0"].expand(call.local_result())


def _embedding(call: _LocalCall) -> Any:
    """Look up the rows this device has; the others are zero here and come from other devices."""
    if all(s.name != "vocabulary" for s in call.strategies):
        return call.plain(call.args, call.kwargs)
    ids, weight = call.operands["data_in_0"], call.operands["weight"]
    rows = weight.shape[0]
    first = rows * call.part(lambda s: s.name == "vocabulary")
    own = (ids >= first) & (ids < first + rows)
    padding = _padding_index(call.node)
    has_padding = padding is not None and first <= padding < first + rows
    local = (ids - first).clamp(0, rows - 1)
    found = F.embedding(local, weight, padding - first if has_padding else None)
    return torch.where(own[..., None], found, 0.0)


def _padding_index(node: fx.Node) -> Any:
    if node.op == "call_module":
        return getattr(node_module(node), "padding_idx", None)
    return dict(named_arguments(node)).get("padding_idx")


LOCAL_KERNELS: dict[str, Callable[[_LocalCall], Any]] = {
    "reshape": _reshape,
    "regroup": _reshape,
    "unflatten": _reshape,
    "expand": _expand,
    "embedding": _embedding,
}
"""Rules whose op, when split, is not the same op on the local parts."""


def whole_tensors(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Each DTensor gathered; every process must ask."""
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
