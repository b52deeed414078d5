"""Plan of a training on processes: strategies on the mesh of a stage, and parts of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chop.distributed.even_stages import even_stages
from chop.distributed.graph_parts import GraphPart, graph_parts, whole_graph
from chop.distributed.hand_plans import HAND_PLANS, hand_plan
from chop.distributed.mesh import Mesh
from chop.distributed.pipeline import make_pipeline
from chop.distributed.plan import Plan, make_plan
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

BEST = "best"
"""Name of the plan that the planner chooses."""
KINDS = {name.lower(): name for name in HAND_PLANS}
"""Name of a plan in a command -> its name among the hand plans."""


@dataclass(frozen=True)
class SplitPlan:
    """Plan to run: for one stage on its mesh, with the parts of the graph and the micro-batches.

    `copies`: parameters that share their values with another one in another layer, with its name
    (`chop.distributed.graph_parts.untied`).
    """

    plan: Plan
    parts: tuple[GraphPart, ...]
    micro_batches: int = 1
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """Number of processes: one for each device of each stage."""
        return len(self.parts) * self.plan.mesh.devices


def check_kind(kind: str, where: str) -> None:
    """Raise for a name that is no plan."""
    if kind not in (BEST, *KINDS):
        raise ConfigError(f"{where}: '{kind}'. Allowed: {', '.join((BEST, *KINDS))}.")


def make_split(
    graph: MaseGraph,
    mesh: Mesh,
    *,
    stages: int = 1,
    micro_batches: int = 1,
    kind: str = BEST,
    copies: Mapping[str, str] | None = None,
) -> SplitPlan:
    """Return the plan for a graph that is annotated at the shapes of one micro-batch.

    `kind`: the planner's best plan, or the name of a hand plan; the planner cuts the stages.
    """
    check_kind(kind, "plan")
    parts: tuple[GraphPart, ...] = (whole_graph(graph),)
    plan: Plan | None = None
    if stages > 1:
        firsts, plan = _stages(graph, mesh, stages, micro_batches)
        parts = tuple(graph_parts(graph, firsts))
    if kind != BEST:
        plan = hand_plan(graph, mesh, KINDS[kind])
    return SplitPlan(plan or make_plan(graph, mesh), parts, micro_batches, copies or {})


def _stages(
    graph: MaseGraph, mesh: Mesh, stages: int, micro_batches: int
) -> tuple[list[str], Plan | None]:
    """Return the first value of each later stage; the plan of the pipeline if the planner cuts."""
    try:
        pipeline = make_pipeline(graph, mesh, stages=stages, micro_batches=micro_batches)
    except ConfigError:
        if mesh.memory is not None:  # only the planner knows what fits
            raise
        return even_stages(graph, stages), None
    return [stage.first for stage in pipeline.stages[1:]], pipeline.plan
