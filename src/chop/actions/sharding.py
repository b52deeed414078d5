"""Plans that split a model over devices, checked on processes of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from chop.arguments import an, takes
from chop.distributed.plan import Plan
from chop.distributed.plan_report import cost_records, plan_records, plan_table
from chop.distributed.verify_plan import Verification, verify_plan
from chop.errors import ChopError
from chop.ir.graph import MaseGraph
from chop.passes import (
    add_common_metadata_analysis_pass,
    autosharding_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.analysis.autosharding import AutoshardingArgs
from chop.passes.rewrite.propagate import bind_inputs


@dataclass(frozen=True)
class ShardArgs(AutoshardingArgs):
    """Verification of a plan."""

    verify: Annotated[
        bool, "Run the plan on processes of this machine and compare with the whole model."
    ] = False


@dataclass(frozen=True)
class ShardResult:
    """The plan, and its verification if there was one."""

    plan: Plan
    verification: Verification | None = None

    def record(self) -> dict[str, Any]:
        """Return plain data: the cost, one record per value, the verification."""
        return {
            "plan": self.plan.record(),
            "cost": cost_records(self.plan),
            "values": plan_records(self.plan),
            "verification": self.verification.record() if self.verification else None,
        }

    def table(self) -> str:
        """Return the plan, its cost and the verdict as text."""
        text = plan_table(self.plan)
        return f"{text}\n\n{verdict(self.verification)}" if self.verification else text


@takes(graph=an(MaseGraph), args=an(ShardArgs))
def shard(graph: MaseGraph, args: ShardArgs, dummy_in: Any = None) -> ShardResult:
    """Plan `graph` for the shapes of `dummy_in` (None: those of its capture); verify if asked.

    The graph is annotated, its model unchanged. A plan with other results than the model raises a
    ChopError.
    """
    inputs = bind_inputs(graph, dummy_in, "shard")
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    fields = AutoshardingArgs.__dataclass_fields__
    _, info = autosharding_analysis_pass(graph, {name: getattr(args, name) for name in fields})
    plan: Plan = info["plan"]
    if not args.verify:
        return ShardResult(plan)
    verification = verify_plan(graph, plan, inputs)
    if not verification.is_equal:
        raise ChopError(f"shard: {verdict(verification)}")
    return ShardResult(plan, verification)


def verdict(result: Verification) -> str:
    """Return a verification as a sentence."""
    word = "equal to" if result.is_equal else "NOT equal to"
    gradient = result.gradient_difference
    also = "" if gradient is None else f", gradients within {gradient:.1e}"
    sizes = ", ".join(f"{size / 1e6:.3f}" for size in result.parameter_bytes)
    return (
        f"{len(result.parameter_bytes)} processes: {word} the whole model, outputs within "
        f"{result.output_difference:.1e}{also} of the largest; MB of parameters held: {sizes}."
    )
