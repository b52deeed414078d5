"""Layers whose parameters FSDP2 stores in parts and gathers for use.

A plan says so by its layouts: along one mesh axis a parameter is stored in parts, its one reader
reads it whole, and each device adds a part of its gradient. This is what `fully_shard` runs:
gather before use, reduce and scatter the gradient, and, if the plan frees the gathered copy after
forward, gather again for backward. Along the other axes the parameter stays a DTensor of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from chop.distributed.graph_parts import GraphPart
from chop.distributed.layouts import PARTIAL, REPLICATE, Use, gradient_of, sharded_dim
from chop.distributed.plan import Plan
from chop.distributed.program import parameter_value
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module

GATHERED = Use(REPLICATE, PARTIAL)
"""Use of a parameter that FSDP2 can provide: whole, with a gradient that is added up."""


@dataclass(frozen=True)
class GatheredParameters:
    """Parameters of one layer that FSDP2 gathers along mesh axis `axis`.

    `dims`: name in the layer -> dimension in which it is stored in parts. `is_freed`: the gathered
    copies are freed after forward.
    """

    axis: int
    dims: Mapping[str, int]
    is_freed: bool


def gathered_layers(
    graph: MaseGraph, plan: Plan, mesh: DeviceMesh, part: GraphPart
) -> dict[str, GatheredParameters]:
    """Return the layers of a part with parameters for FSDP2, by target, all along one axis.

    A layer that runs twice, a parameter that two layers share, or one that changes along another
    axis, too, is left to the plan's own conversions. So is everything if the axes of a mesh of
    several axes have no names.
    """
    if mesh.mesh_dim_names is None and len(mesh.shape) > 1:
        return {}
    readers = _only_readers(graph, part)
    axes = range(len(mesh.shape))
    tables = [_gathered_along(axis, graph, plan, readers) for axis in axes]
    return max(tables, key=lambda table: sum(len(layer.dims) for layer in table.values()))


def _only_readers(graph: MaseGraph, part: GraphPart) -> dict[str, fx.Node]:
    """Return the only reader of each parameter of a layer of `part`, by the parameter's name."""
    nodes = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    calls = Counter(id(node_module(node)) for node in nodes)
    named = graph.model.named_parameters(remove_duplicate=False)
    owners = Counter(id(parameter) for _, parameter in named)
    names = {id(parameter): name for name, parameter in graph.model.named_parameters()}
    return {
        names[id(parameter)]: node
        for node in nodes
        if node.name in part.nodes and calls[id(node_module(node))] == 1
        for parameter in node_module(node).parameters()
        if owners[id(parameter)] == 1
    }


def _gathered_along(
    axis: int, graph: MaseGraph, plan: Plan, readers: Mapping[str, fx.Node]
) -> dict[str, GatheredParameters]:
    dims: dict[str, dict[str, int]] = {}
    freed: set[str] = set()
    for full_name, node in readers.items():
        value, target = parameter_value(full_name), str(node.target)
        if value not in plan.strategies or value in plan.published:
            continue
        if not full_name.startswith(f"{target}."):  # the layer has two names
            continue
        strategy, name = plan.strategies[value][axis], full_name.removeprefix(f"{target}.")
        dim = sharded_dim(strategy.state or strategy.result)
        if dim is not None and _is_for_fsdp(plan, value, plan.uses(node.name, name), axis):
            dims.setdefault(target, {})[name] = dim
            freed |= {target} if strategy.is_freed else set()
    return {t: GatheredParameters(axis, each, t in freed) for t, each in dims.items()}


def _is_for_fsdp(plan: Plan, value: str, uses: Sequence[Use], axis: int) -> bool:
    """Return True if FSDP2 does all that the plan does with a parameter, in the plan's order.

    A gradient that is also added up along another axis is divided first, which FSDP2 does last.
    """
    stored = [Use(layout, gradient_of(layout)) for layout in plan.layouts(value)]
    others = [(uses[a], stored[a]) for a in range(len(stored)) if a != axis]
    return uses[axis] == GATHERED and all(use == own for use, own in others)


class GatheredLayer(nn.Module):
    """Layer inside the hooks of FSDP2, which make its parameters whole along one axis."""

    def __init__(self, layer: nn.Module, gathered: GatheredParameters) -> None:
        super().__init__()
        self.layer, self.gathered = layer, gathered

    def shard(self, mesh: DeviceMesh) -> None:
        """Give the parameters to FSDP2; those that it does not gather stay as they are."""
        own = dict(self.layer.named_parameters())
        dims = {id(own[name]): dim for name, dim in self.gathered.dims.items()}
        fully_shard(
            self,
            mesh=axis_of(mesh, self.gathered.axis),
            reshard_after_forward=self.gathered.is_freed,
            shard_placement_fn=lambda parameter: Shard(dims[id(parameter)]),
            ignored_params={p for name, p in own.items() if name not in self.gathered.dims},
        )
        hooked: Any = self  # `fully_shard` adds methods
        hooked.set_gradient_divide_factor(1.0)  # the loss is that of the whole batch: add
        hooked.set_force_sum_reduction_for_comms(True)

    def keep_gathered(self) -> None:
        """Keep the gathered parameters from the first micro-batch to `release`, if not freed."""
        hooked: Any = self
        hooked.set_reshard_after_backward(self.gathered.is_freed)

    def frees_after_forward(self, is_freed: bool) -> None:
        """Set whether the gathered parameters are freed after the next forward."""
        hooked: Any = self
        hooked.set_reshard_after_forward(is_freed)

    def release(self) -> None:
        """Free the gathered parameters at the end of a step."""
        hooked: Any = self
        if not self.gathered.is_freed:
            hooked.reshard()

    def forward(
        self, run: Callable[[Mapping[str, Tensor], Any, Any], Any], args: Any, kwargs: Any
    ) -> Any:
        """Return `run(parameters, args, kwargs)` with the gathered parameters by name.

        The arguments pass through here so that FSDP2 notices when their gradients are done.
        """
        whole = {n: p for n, p in self.layer.named_parameters() if n in self.gathered.dims}
        return run(whole, args, kwargs)


def axis_of(mesh: DeviceMesh, axis: int) -> DeviceMesh:
    """Return the devices along one axis of a mesh."""
    return mesh if len(mesh.shape) == 1 else mesh[_names(mesh)[axis]]


def other_axes_of(mesh: DeviceMesh, axis: int) -> DeviceMesh | None:
    """Return the mesh of all axes but one; None if there is no other."""
    others = tuple(name for i, name in enumerate(_names(mesh)) if i != axis)
    return mesh[others] if others else None


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return mesh.mesh_dim_names or ("",)
