"""Plan how a model is split over devices, and check the plan on processes of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """How to split, as `AutoshardingArgs` says.

    `verify`: also run the plan on processes of this machine and compare with the whole model.
    """

    verify: bool = False


@dataclass(frozen=True)
class ShardResult:
    """The plan, and what running it gave where that was asked for."""

    plan: Plan
    verification: Verification | None = None

    def record(self) -> dict[str, Any]:
        """Plain data: cost, one record a value, verification."""
        return {
            "plan": self.plan.record(),
            "cost": cost_records(self.plan),
            "values": plan_records(self.plan),
            "verification": self.verification.record() if self.verification else None,
        }

    def table(self) -> str:
        """What is split and how, what it costs, and the verdict, as text."""
        text = plan_table(self.plan)
        return f"{text}\n\n{verdict(self.verification)}" if self.verification else text


@takes(graph=an(MaseGraph), args=an(ShardArgs))
def shard(graph: MaseGraph, args: ShardArgs, dummy_in: Any = None) -> ShardResult:
    """Plan `graph` at the shapes of `dummy_in` (None: those of the trace) and verify if asked.

    The graph is annotated; its model is left as it is. A plan that does not compute what the model
    computes is a ChopError.
    """
    inputs = bind_inputs(graph, dummy_in, "shard")
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    fields = AutoshardingArgs.__dataclass_fields__
    _, info = autosharding_analysis_pass(graph, {name: getattr(args, name) for name in fields})
    plan: Plan = info["plan"]
    if not args.verify:
        return ShardResult(plan)
    found = verify_plan(graph, plan, inputs)
    if not found.is_equal:
        raise ChopError(f"shard: {verdict(found)}")
    return ShardResult(plan, found)


def verdict(found: Verification) -> str:
    """A verification in a sentence."""
    word = "equal to" if found.is_equal else "NOT equal to"
    gradient = found.gradient_difference
    also = "" if gradient is None else f", gradients within {gradient:.1e}"
    held = ", ".join(f"{size / 1e6:.3f}" for size in found.parameter_bytes)
    return (
        f"{len(found.parameter_bytes)} processes: {word} the whole model, outputs within "
        f"{found.output_difference:.1e}{also} of the largest; MB of parameters held: {held}."
    )
