"""Plan the split of a graph over devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from torch import fx

from chop.distributed.layouts import REPLICATE, Layout
from chop.distributed.mesh import Mesh, bytes_of
from chop.distributed.plan import Plan, make_plan
from chop.distributed.plan_file import pins_of
from chop.distributed.plan_part import part_of_model
from chop.distributed.program import program_of, references
from chop.distributed.strategies import WHOLE
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import UNKNOWN, find_op
from chop.passes.base import PassResult, graph_pass


@dataclass(frozen=True)
class AutoshardingArgs:
    """Mesh and training step to plan for."""

    mesh_shape: Annotated[tuple[int, ...], "Devices along one to three axes."] = (1, 2)
    bandwidth: Annotated[
        tuple[float, ...], "Bytes per second of a link: one value, or one per axis."
    ] = (1e11,)
    latency: Annotated[tuple[float, ...], "Seconds of a link: one value, or one per axis."] = (
        5e-6,
    )
    memory: Annotated[
        int | str | None, "Memory per device: bytes, or with a unit as 80GB. Default: no limit."
    ] = None
    flops: Annotated[float, "Floating-point operations per second of a device."] = 5e13
    memory_bandwidth: Annotated[float, "Bytes per second of a device's memory."] = 1.5e12
    overlaps: Annotated[
        bool, "Gathers of parameters and sums of their gradients run while the device computes."
    ] = False
    training: Annotated[
        bool, "Plan a training step with Adam (forward and backward), not only forward."
    ] = True
    pins: Annotated[
        Mapping[str, str], 'Strategies that the plan must have: value = "split 0/column".'
    ] = field(default_factory=dict)
    only: Annotated[
        str | None,
        "Split only the part of the model between the first and the last layer that match, as "
        "'model.layers.1*'. Everything else is whole on every device.",
    ] = None

    def mesh(self) -> Mesh:
        """Return the mesh of these settings."""
        links = (self.bandwidth, self.latency)
        memory = None if self.memory is None else bytes_of(self.memory)
        speeds = (self.flops, self.memory_bandwidth)
        return Mesh(self.mesh_shape, *links, memory, *speeds, self.overlaps)

    def __post_init__(self) -> None:
        self.mesh()  # a value out of range is an error of the configuration


@graph_pass("autosharding_analysis_pass", AutoshardingArgs, needs=("common",))
def autosharding_analysis_pass(graph: MaseGraph, args: AutoshardingArgs) -> PassResult:
    """Choose the split of every node over the mesh with the least modelled time.

    `info["plan"]` is the plan, with its cost. Each tensor operand and result gets its layouts under
    `software.args[name]["sharding"]` and `software.results[name]["sharding"]`, one entry per mesh
    axis: "R" whole, "S0" split along dimension 0, "P" a sum over devices; `software.sharding` has
    the names of the node's strategies. Needs common metadata at the shapes to plan for.
    """
    mesh = args.mesh()
    program = program_of(graph) if args.pins or args.only else None
    pins = pins_of(args.pins, program, mesh) if args.pins and program else None
    part = [part_of_model(program, args.only)] if args.only and program else []
    plan = make_plan(graph, mesh, training=args.training, pins=pins, allowed=part)
    for node in graph.fx_graph.nodes:
        _annotate(graph, node, plan)
    return graph, {"plan": plan}


def _annotate(graph: MaseGraph, node: fx.Node, plan: Plan) -> None:
    meta = mase_meta(node)
    software, strategies = meta.software, plan.strategies.get(node.name)
    whole = (REPLICATE,) * len(plan.mesh.shape)
    names = tuple(s.name for s in strategies) if strategies else (WHOLE.name,) * len(whole)
    software.sharding = {"strategy": names}
    software.args, software.results = software.args or {}, software.results or {}
    for name, value in (meta.common.results or {}).items():
        if value.is_tensor:
            layouts = plan.layouts(node.name) if strategies else whole
            software.results.setdefault(name, {})["sharding"] = layouts
    for name, layouts in _operands(graph, node, plan).items():
        software.args.setdefault(name, {})["sharding"] = layouts


def _operands(graph: MaseGraph, node: fx.Node, plan: Plan) -> dict[str, tuple[Layout, ...]]:
    """Return the layouts in which `node` reads its tensors; all items of a tuple as the first."""
    if node.name not in plan.strategies:
        return {}
    op = find_op(node, graph.custom_ops) or UNKNOWN
    referred = {name for name, _ in references(node, op)}
    layouts: tuple[Layout, ...] = ()
    named: dict[str, tuple[Layout, ...]] = {}
    for name, value in (mase_meta(node).common.args or {}).items():
        if value.is_tensor:
            if value.source is None or name in referred:
                layouts = tuple(use.layout for use in plan.uses(node.name, name))
            named[name] = layouts
    return named
