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
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_any, tree_map_only
from torch.utils.checkpoint import checkpoint

from chop.distributed.gathered_layers import (
    GatheredLayer,
    gathered_layers,
    other_axes_of,
)
from chop.distributed.graph_parts import GraphPart, whole_graph
from chop.distributed.layouts import (
    REPLICATE,
    Layout,
    Shape,
    local_shape,
    sharded_dim,
    whole_shape,
)
from chop.distributed.local_calls import Layouts, LocalCall, LocalValue, Uses, local_part
from chop.distributed.parameter_copies import FreedCopies, FreedCopy, StepCopy
from chop.distributed.plan import Plan
from chop.distributed.program import (
    derived_rule,
    parameter_value,
    program_of,
    stored_tensors,
)
from chop.distributed.redistribution import (
    Conversion,
    gradients_of,
    layouts_of,
    placements,
    redistribute,
    sendable,
)
from chop.distributed.redistribution import placement as placement  # its earlier place
from chop.distributed.stretches import stretches
from chop.errors import ConfigError, GraphError
from chop.ir.graph import MaseGraph
from chop.ir.ops import UNKNOWN, find_op, node_module
from chop.ir.outputs import template_of
from chop.ir.split_rule import SplitRule


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
        self.copies: dict[Any, StepCopy] | None = None
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
        self.readers = _parameter_readers(graph, self.part)
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

    def begin_step(self) -> None:
        """Prepare for several micro-batches, which share copies of parameters."""
        self.copies = {}
        for unit in self.gathered.values():
            unit.keep_gathered()

    def end_step(self) -> None:
        """Convert the gradients that all micro-batches have added up; forget the copies."""
        own = self.placed()
        by_value = {parameter_value(name): tensor for name, tensor in own.items()}
        for (name, before, after), stored in (self.copies or {}).items():
            if stored.gradient is not None:
                gradients = gradients_of(after), gradients_of(before)
                _add_gradient(by_value[name], redistribute(stored.gradient, self.mesh, *gradients))
        self.copies = None
        for unit in self.gathered.values():
            unit.release()

    def local_bytes(self) -> int:
        """Return the bytes on this device of what the plan places: parameters, packed weights."""
        parts = (local_part(p) for p in self.placed().values())
        return sum(p.numel() * p.element_size() for p in parts)

    def placed(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that the plan places, by their names in the model."""
        tensors = stored_tensors(self.model).items()
        return {n: t for n, t in tensors if parameter_value(n) in self.plan.strategies}


def _add_gradient(parameter: Tensor, part: Tensor) -> None:
    """Add this process's part of a gradient to the gradient of a parameter."""
    gradient = part
    if isinstance(parameter, DTensor):
        gradient = DTensor.from_local(
            part.contiguous(),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


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


def _parameter_readers(graph: MaseGraph, part: GraphPart) -> dict[str, set[str]]:
    """Return the nodes of a part that read each parameter, by its name in the plan."""
    values = program_of(graph).values
    readers: dict[str, set[str]] = {value.name: set() for value in values if value.is_parameter}
    for value in values:
        for reference in value.references if value.name in part.nodes else ():
            if reference.value in readers:
                readers[reference.value].add(value.name)
    return readers


def _distribute(
    tensor: Tensor, layouts: Layouts, mesh: DeviceMesh, gathered_axis: int | None = None
) -> Tensor:
    """Return a parameter or buffer as a DTensor with the values of the first process.

    FSDP2 splits a parameter along `gathered_axis` by itself: it needs it whole along this axis.
    """
    if gathered_axis is not None:
        others = other_axes_of(mesh, gathered_axis)
        if others is None:
            own = tensor.detach().clone(memory_format=torch.contiguous_format)  # as FSDP2 wants it
            return nn.Parameter(own, requires_grad=tensor.requires_grad)
        rest = tuple(layout for i, layout in enumerate(layouts) if i != gathered_axis)
        return _distribute(tensor, rest, others)
    data = distribute_tensor(sendable(tensor.detach()).contiguous(), mesh, placements(layouts))
    if not isinstance(tensor, nn.Parameter):
        return data.view(tensor.dtype) if data.dtype != tensor.dtype else data
    return nn.Parameter(data, requires_grad=tensor.requires_grad)


class _Runner(fx.Interpreter):
    """Interpreter of the graph on this device."""

    def __init__(self, owner: ShardedModel) -> None:
        super().__init__(owner.model)
        self.extra_traceback = False
        self.plan, self.mesh = owner.plan, owner.mesh
        self.custom_ops = owner.custom_ops
        self.parameters: Mapping[int, LocalValue] = {
            id(tensor): self._local_value(local_part(tensor), parameter_value(name))
            for name, tensor in owner.placed().items()
        }
        self.derived: Mapping[str, SplitRule] = owner.derived
        self.gathered: Mapping[str, GatheredLayer] = owner.gathered
        self.totals: Mapping[str, Tensor] = owner.totals
        self.part = owner.part
        self.copies = owner.copies
        self.freed = FreedCopies()
        self.readers: dict[str, set[str]] = owner.readers
        self.is_recomputed = False
        self.inputs: Mapping[str, Any] = {}

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
        self.inputs = inputs
        for stretch, is_recomputed in stretches([nodes[n] for n in self.part.nodes], self.plan):
            if is_recomputed and torch.is_grad_enabled():
                self._run_recomputed(stretch)
            else:
                self._run_nodes(stretch)
        if self.part.is_last:
            return self.env[nodes[self.part.nodes[-1]]]
        return tuple(self._sent(self.env[nodes[name]]) for name in self.part.sends)

    def _run_nodes(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            if node.op == "placeholder":
                whole = (REPLICATE,) * len(self.mesh.shape)
                self.env[node] = self._hold(_input(node, self.inputs), whole)
            else:
                result = self.env[node] = self.run_node(node)
                local = result.local if isinstance(result, LocalValue) else result
                self.freed.read_by(node, local, self.part)
            self._forget(node)

    def _forget(self, node: fx.Node) -> None:
        """Forget the values that `node` was the last to read; backward holds what it needs."""
        for source in self.user_to_last_uses.get(node, ()):
            if source.name not in self.part.sends:
                self.env.pop(source, None)

    # -- segments that are recomputed in backward ----------------------------------------------

    def _run_recomputed(self, nodes: Sequence[fx.Node]) -> None:
        """Run nodes of which backward keeps only what they read; it runs them again."""
        inside = set(nodes)
        sources = dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s not in inside)
        entering = {source: self._provided(self.env[source]) for source in sources}
        leaving = [n for n in nodes if self._is_needed_behind(n, inside)]
        runs = itertools.count()

        def run(*tensors: Tensor) -> dict[fx.Node, Any]:
            runner = copy.copy(self)
            runner.env, runner.is_recomputed = dict(entering), True
            with self._gathered_until_backward(nodes, is_again=next(runs) > 0):
                runner._run_nodes(nodes)
            return {node: runner.env[node] for node in leaving}

        # the tensors say of which devices random numbers must be the same again
        read = [entering[s].local for s in entering if isinstance(entering[s], LocalValue)]
        tensors = [t for t in (*read, *self.inputs.values()) if isinstance(t, Tensor)]
        self.env.update(checkpoint(run, *tensors, use_reentrant=False))
        for node in nodes:
            self._forget(node)

    def _is_needed_behind(self, node: fx.Node, inside: Container[fx.Node]) -> bool:
        """Return True if something behind a stretch of nodes needs the value of one of them."""
        is_read = any(user not in inside for user in node.users)
        return is_read or node.op == "output" or node.name in self.part.sends

    def _provided(self, value: Any) -> Any:
        """Return a value as its readers get it, without the tensor from which it was converted."""
        if not isinstance(value, LocalValue):
            return value
        shared = self.plan.published.get(value.name)
        if shared is None or shared == value.own:
            return value
        if value.shared is None:
            value.shared = self._reshard(value.local, value.own, shared, value.name)
        return LocalValue(value.shared, layouts_of(shared), value.name, value.shared)

    @contextlib.contextmanager
    def _gathered_until_backward(
        self, nodes: Sequence[fx.Node], *, is_again: bool
    ) -> Iterator[None]:
        """Keep parameters gathered from the second run of `nodes` to their backward."""
        targets = [str(node.target) for node in nodes if is_again and node.op == "call_module"]
        units = [self.gathered[target] for target in targets if target in self.gathered]
        units = [unit for unit in units if unit.gathered.is_freed]
        for unit in units:
            unit.frees_after_forward(False)
        try:
            yield
        finally:
            for unit in units:
                unit.frees_after_forward(True)

    def _received(self, tensor: Tensor, name: str) -> LocalValue:
        """Return a value of another part, in the layouts in which it is provided to readers."""
        shared = self.plan.published.get(name)
        layouts = self.plan.layouts(name) if shared is None else layouts_of(shared)
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
        call = LocalCall(self, n, find_op(n, self.custom_ops) or UNKNOWN)
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
            return self._reshard(value.local, own, uses, where, value.name)
        if value.shared is None:
            value.shared = self._reshard(value.local, own, shared, where, value.name)
        return self._reshard(value.shared, shared, uses, where)

    def _reshard(
        self, local: Any, before: Uses, after: Uses, where: str, parameter: str = ""
    ) -> Any:
        """Convert every tensor of `local`; `parameter`: its name in the plan, if it is one."""
        if before == after:
            return local
        stored = (
            self._stored_copy(parameter, before, after, where)
            if parameter in self.readers
            else None
        )

        def convert(tensor: Tensor) -> Tensor:
            self._check_even(tensor, layouts_of(before), layouts_of(after), where)
            part: Tensor = Conversion.apply(tensor, self.mesh, before, after, stored)  # type: ignore[no-untyped-call]
            return part

        return tree_map_only(Tensor, convert, local)

    def _stored_copy(
        self, parameter: str, before: Uses, after: Uses, where: str
    ) -> StepCopy | FreedCopy | None:
        """Return the place for the copy of a parameter, if it outlives its conversion."""
        if any(strategy.is_freed for strategy in self.plan.strategies[parameter]):
            if self.is_recomputed:  # nobody holds the copy of the first run
                return None
            pairs = zip(layouts_of(before), layouts_of(after), strict=True)
            is_moved = any(old not in (new, REPLICATE) for old, new in pairs)
            is_published = parameter in self.plan.published
            readers = self.readers[parameter] if is_published else {where}
            return self.freed.add(readers) if is_moved and torch.is_grad_enabled() else None
        if self.copies is None:
            return None
        adds_up = all(sharded_dim(layout) is None for layout in gradients_of(before))
        return self.copies.setdefault((parameter, before, after), StepCopy(adds_up))

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


def whole_tensors(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gather each DTensor; every process must call this."""
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
