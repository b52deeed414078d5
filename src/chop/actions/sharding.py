"""Plans that split a model over devices, checked on processes of this machine."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from tabulate import tabulate
from torch import Tensor

from chop.arguments import an, takes
from chop.distributed.graph_parts import untied
from chop.distributed.hand_plans import MEGATRON, comparison_records, hand_plans
from chop.distributed.machine_constants import MachineConstants, load_machine, measure_machine
from chop.distributed.pipeline import PipelinePlan, make_pipeline
from chop.distributed.plan import Plan
from chop.distributed.plan_file import LoadedPlan, load_plan, plan_differences, plan_document
from chop.distributed.plan_report import PLAN_HEADERS, cost_records, draw, plan_records, plan_table
from chop.distributed.split_plan import make_split
from chop.distributed.transformers_styles import WHOLE, transformers_plan
from chop.distributed.verify_plan import SplitRun, Verification, verify_plan, verify_plans
from chop.errors import ChopError, ConfigError
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
    compare: Annotated[bool, "Price DDP, FSDP and Megatron plans beside this one."] = False
    against: Annotated[
        Path | None, "A saved plan: price it at these shapes and print the differences."
    ] = None
    transformers: Annotated[
        bool,
        "Also write transformers_plan.json, the best plan that transformers runs by itself: "
        "arguments of its DistributedConfig. The mesh has one axis.",
    ] = False
    machine: Annotated[
        Path | None,
        "Constants of a machine, as --calibrate writes them. Options that differ from their "
        "defaults win.",
    ] = None
    calibrate: Annotated[
        bool,
        "Measure the constants of this machine with local processes, write machine.json and plan "
        "with them.",
    ] = False
    stages: Annotated[int, "Stages of a pipeline; the mesh is that of one stage."] = 1
    micro_batches: Annotated[
        int, "Micro-batches of a step. With stages, inputs have the rows of one micro-batch."
    ] = 1


CONSTANTS = ("flops", "memory_bandwidth", "bandwidth", "latency")
"""Settings that a machine determines."""


def with_machine(args: ShardArgs, machine: MachineConstants) -> ShardArgs:
    """Return the settings with the constants of a machine, except those that are set."""
    plain = AutoshardingArgs()
    measured = machine.settings(len(args.mesh_shape))
    unset = [name for name in CONSTANTS if getattr(args, name) == getattr(plain, name)]
    return replace(args, machine=None, calibrate=False, **{n: measured[n] for n in unset})


@dataclass(frozen=True)
class ShardResult:
    """The plan, and what was asked for beside it."""

    plan: Plan
    verification: Verification | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    comparison: Sequence[Mapping[str, Any]] = ()
    pipeline: PipelinePlan | None = None
    saved: LoadedPlan | None = None
    transformers: Mapping[str, Any] | None = None
    transformers_seconds: float = 0.0
    machine: MachineConstants | None = None

    def record(self) -> dict[str, Any]:
        """Return plain data: the cost, one record per value, the verification."""
        return {
            "plan": self.plan.record(),
            "cost": cost_records(self.plan),
            "values": plan_records(self.plan),
            "verification": self.verification.record() if self.verification else None,
            "comparison": list(self.comparison),
            "pipeline": self.pipeline.record() if self.pipeline else None,
            "machine": self.machine.record() if self.machine else None,
        }

    def table(self) -> str:
        """Return the plan, its cost and what was asked for as text."""
        if self.pipeline:
            stages = tabulate(self.pipeline.record()["stages"], headers="keys")
            values = draw(plan_records(self.plan, only_split=True), PLAN_HEADERS)
            parts = [values, stages, pipeline_sentence(self.pipeline)]
            parts += [verdict(self.verification)] if self.verification else []
            return "\n\n".join(parts)
        parts = [plan_table(self.plan), bound_sentence(self.plan)]
        if self.comparison:
            parts += [tabulate(list(self.comparison), headers="keys", floatfmt=".4g")]
        if self.saved:
            rows = plan_differences(self.saved.plan, self.plan)
            parts += [saved_sentence(self.saved), *([tabulate(rows, "keys")] if rows else [])]
        if self.transformers is not None:
            parts += [self._transformers_sentence(self.transformers["tp_plan"])]
        parts += [verdict(self.verification)] if self.verification else []
        return "\n\n".join(parts)

    def _transformers_sentence(self, styles: Mapping[str, str]) -> str:
        """Return the time of the plan for transformers as a sentence."""
        step, own = self.transformers_seconds, self.plan.cost.step_seconds
        text = (
            f"transformers_plan.json takes {step * 1e3:.4g} ms, {step / own:.3g} times this plan."
        )
        if set(styles.values()) <= {WHOLE}:
            text += " It splits nothing: at these shapes communication takes longer than it saves."
        return text


@takes(graph=an(MaseGraph), args=an(ShardArgs))
def shard(graph: MaseGraph, args: ShardArgs, dummy_in: Any = None) -> ShardResult:
    """Plan `graph` for the shapes of `dummy_in` (None: those of its capture); verify if asked.

    The graph is annotated, its model unchanged. A plan with other results than the model raises a
    ChopError. With `stages` or `micro_batches`, a pipeline is planned, and the graph gets no
    layouts.
    """
    if args.calibrate or args.machine:
        machine = measure_machine(args.mesh_shape) if args.calibrate else None
        constants = machine or load_machine(args.machine or Path())
        return replace(shard(graph, with_machine(args, constants), dummy_in), machine=machine)
    inputs = bind_inputs(graph, dummy_in, "shard")
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    if args.stages > 1 or args.micro_batches > 1:
        _check_pipeline(args)
        staged, copies = _staged(graph, args, inputs)
        counts = {"stages": args.stages, "micro_batches": args.micro_batches}
        pipeline = make_pipeline(staged, args.mesh(), training=args.training, **counts)
        return ShardResult(
            pipeline.plan,
            _verified_step(staged, args, inputs, copies) if args.verify else None,
            document=plan_document(pipeline.plan, staged),
            pipeline=pipeline,
        )
    fields = AutoshardingArgs.__dataclass_fields__
    _, info = autosharding_analysis_pass(graph, {name: getattr(args, name) for name in fields})
    plan: Plan = info["plan"]
    others = hand_plans(graph, plan.mesh, training=plan.training) if args.transformers else {}
    return ShardResult(
        plan,
        _verified(graph, plan, inputs) if args.verify else None,
        plan_document(plan, graph),
        _comparison(graph, plan) if args.compare else (),
        saved=_saved(graph, args.against) if args.against else None,
        transformers=transformers_plan(others[MEGATRON], graph) if others else None,
        transformers_seconds=others[MEGATRON].cost.step_seconds if others else 0.0,
    )


def _saved(graph: MaseGraph, file: Path) -> LoadedPlan:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"shard: {file} is not a saved plan: {error}.") from error
    return load_plan(document, graph)


def _verified(graph: MaseGraph, plan: Plan, inputs: Any) -> Verification:
    return _checked(verify_plan(graph, plan, inputs))


def _staged(
    graph: MaseGraph, args: ShardArgs, inputs: Mapping[str, Any]
) -> tuple[MaseGraph, Mapping[str, str]]:
    """Return the graph whose layers share no parameters, and which of them are copies.

    A graph that stays in one stage, or that shares none, is returned itself.
    """
    listed = (graph.model.named_parameters, graph.model.named_buffers)
    is_shared = any(len(list(each(remove_duplicate=False))) > len(list(each())) for each in listed)
    if args.stages == 1 or not is_shared:
        return graph, {}
    staged = copy.deepcopy(graph)
    copies = untied(staged.model)
    init_metadata_analysis_pass(staged)
    add_common_metadata_analysis_pass(staged, {"dummy_in": inputs})
    return staged, copies


def _verified_step(
    staged: MaseGraph, args: ShardArgs, inputs: Mapping[str, Any], copies: Mapping[str, str]
) -> Verification:
    """Run a training step of the stages."""
    split = make_split(
        staged, args.mesh(), stages=args.stages, micro_batches=args.micro_batches, copies=copies
    )
    batch = {name: _micro_batches(value, args.micro_batches) for name, value in inputs.items()}
    return _checked(verify_plans([SplitRun(staged, split, batch)])[0])


def _micro_batches(value: Any, count: int) -> Any:
    """Return the rows of a batch: those of each micro-batch in another order."""
    if not (isinstance(value, Tensor) and value.dim()):
        return value
    return torch.cat([value.roll(shift, 0) for shift in range(count)])


def _checked(verification: Verification) -> Verification:
    if not verification.is_equal:
        raise ChopError(f"shard: {verdict(verification)}")
    return verification


def _comparison(graph: MaseGraph, plan: Plan) -> list[dict[str, Any]]:
    return comparison_records(plan, hand_plans(graph, plan.mesh, training=plan.training))


def _check_pipeline(args: ShardArgs) -> None:
    """Raise for options that a pipeline does not follow."""
    conflicts = [
        n for n in ("compare", "against", "pins", "only", "transformers") if getattr(args, n)
    ]
    if conflicts:
        raise ConfigError(f"shard: {conflicts[0]} is for plans without a pipeline; remove stages.")
    if args.verify and not args.training:
        raise ConfigError("shard.verify: stages run a training step. Leave out --no-training.")


def bound_sentence(plan: Plan) -> str:
    """Return the proved bound as a sentence."""
    step, bound = plan.cost.step_seconds * 1e3, plan.bound_seconds * 1e3
    if plan.is_exact:
        return f"No plan that fits is faster by this model: {step:.4g} ms is optimal."
    return f"No plan that fits takes less than {bound:.4g} ms: the gap is at most {plan.gap:.3%}."


def pipeline_sentence(pipeline: PipelinePlan) -> str:
    """Return the time of a pipeline as a sentence."""
    return (
        f"{len(pipeline.stages)} stages, {pipeline.micro_batches} micro-batches: a step takes "
        f"{pipeline.step_seconds * 1e3:.4g} ms, {pipeline.bubble:.1%} of it bubble; the largest "
        f"gap of a stage is {pipeline.gap:.3%}."
    )


def saved_sentence(saved: LoadedPlan) -> str:
    """Return what became of a saved plan as a sentence."""
    cost = saved.plan.cost.step_seconds * 1e3
    text = f"The saved plan takes {cost:.4g} ms at these shapes, {saved.saved_seconds * 1e3:.4g} ms"
    changed = ", ".join(
        f"{name} {before} -> {after}" for name, (before, after) in saved.changed_shapes.items()
    )
    return f"{text} when it was saved." + (f" Shapes changed: {changed}." if changed else "")


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
