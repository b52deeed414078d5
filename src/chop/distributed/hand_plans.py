"""Plans that people make by hand, priced by the same model: DDP, FSDP, Megatron.

A hand plan is a restriction of the options. What it leaves open is planned: the first conversion
of a residual, or which of two linear layers is split by columns. So it is the best plan of its
kind, and a plan without the restriction is never slower.

To add a hand plan, add a function from a `_Tracks` and a value to its options, and its row in
`HAND_PLANS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chop.arguments import an, takes
from chop.distributed.domains import Option, Setting, options_of, structure_of
from chop.distributed.layouts import REPLICATE, shard, sharded_dim
from chop.distributed.memory_search import Solver
from chop.distributed.mesh import Mesh
from chop.distributed.plan import Plan, decisions_of
from chop.distributed.pricing import price_decisions
from chop.distributed.problem import PlanningProblem
from chop.distributed.program import Program, ProgramValue, program_of
from chop.distributed.strategies import WHOLE, Strategy
from chop.ir.graph import MaseGraph

LAYERS = ("column", "row")
"""Strategies that split the weight of a linear layer."""


def tracked_dims(program: Program, dim: int) -> dict[str, int]:
    """Return the dimension of each value that dimension `dim` of the inputs becomes.

    The inputs are the values that nothing computes and whose first dimension is the batch.
    """
    dims: dict[str, int] = {}
    batch = _batch(program)
    for value in program.values:
        sources = [r.value for r in value.references]
        if not sources or value.is_fixed:
            shape = value.call.result if value.call.results else ()
            if not value.is_parameter and len(shape) > dim and shape[0] == batch:
                dims[value.name] = dim
            continue
        for strategy in value.layouts(_divisor(value)):
            if _follows(strategy, value, dims):
                result = sharded_dim(strategy.result)
                if result is not None:
                    dims[value.name] = result
                break
    return dims


def _batch(program: Program) -> int:
    inputs = [v for v in program.values if not v.references and not v.is_parameter]
    shapes = [v.call.result for v in inputs if v.call.results and v.call.result]
    return shapes[0][0] if shapes else 1


def _divisor(value: ProgramValue) -> int:
    """Return a number of devices that divides as many dimensions as possible."""
    sizes = [n for shape in (*value.call.operands.values(), *value.call.results) for n in shape]
    return 2 if any(n % 2 == 0 for n in sizes) else max([*sizes, 1])


def _follows(strategy: Strategy, value: ProgramValue, dims: Mapping[str, int]) -> bool:
    """Return True if `strategy` splits exactly the tracked dimension of each operand."""
    tracked = {r.operand: dims[r.value] for r in value.references if r.value in dims}
    splits = {n: layout for n, layout in strategy.operands.items() if layout != REPLICATE}
    return bool(splits) and all(
        operand in tracked and layout == shard(tracked[operand])
        for operand, layout in splits.items()
    )


def _inside(program: Program) -> frozenset[str]:
    """Return the values from a linear layer up to the next one, in pairs."""
    inside: set[str] = set()
    for value in program.values:
        follows = any(r.value in inside for r in value.references)
        if follows != _Tracks.is_layer(value):
            inside.add(value.name)
    return frozenset(inside)


@dataclass(frozen=True)
class _Tracks:
    """Dimension of each value that holds the batch, and dimension that holds the sequence.

    `inside`: values between a layer that is split by columns and one that is split by rows.
    """

    batch: Mapping[str, int]
    sequence: Mapping[str, int]
    inside: frozenset[str]

    @staticmethod
    def is_layer(value: ProgramValue) -> bool:
        """Return True for a linear layer."""
        return any(s.name in LAYERS for s in value.layouts(_divisor(value)))

    def is_tensor_parallel(self, value: ProgramValue, strategy: Strategy) -> bool:
        """Return True if Megatron may use `strategy` for `value`."""
        if value.is_parameter or strategy == WHOLE:
            return True
        if self.is_layer(value):
            is_second = any(r.value in self.inside for r in value.references)
            return strategy.name == ("row" if is_second else "column")
        is_data = self.splits_batch(value, strategy) or self.splits_sequence(value, strategy)
        return value.name in self.inside and not is_data

    def of(self, value: ProgramValue) -> tuple[Any, ...]:
        """Return what the preferences depend on beside the structure of a value."""
        names = [r.value for r in value.references]
        dims = ((self.batch.get(name), self.sequence.get(name)) for name in names)
        return (*dims, tuple(name in self.inside for name in (value.name, *names)))

    def splits_batch(self, value: ProgramValue, strategy: Strategy) -> bool:
        return _follows(strategy, value, self.batch)

    def splits_sequence(self, value: ProgramValue, strategy: Strategy) -> bool:
        return _follows(strategy, value, self.sequence)


Kind = Callable[[_Tracks, ProgramValue, Option], float | None]
"""Preference of an option: None if it is not allowed, else the larger the better."""


def _data(tracks: _Tracks, value: ProgramValue, axes: Option) -> float | None:
    """Split the batch along as many axes as possible; parameters are whole."""
    if value.is_parameter:
        return 0 if all(s == WHOLE for s in axes) else None
    splits = [tracks.splits_batch(value, s) for s in axes]
    is_plain = all(split or s == WHOLE for split, s in zip(splits, axes, strict=True))
    return sum(splits) if is_plain else None


def _ddp(tracks: _Tracks, value: ProgramValue, option: Option) -> float | None:
    return _data(tracks, value, option)


def _fsdp(tracks: _Tracks, value: ProgramValue, option: Option) -> float | None:
    """Split the batch, and store every parameter in as many parts as possible."""
    if not value.is_parameter:
        return _data(tracks, value, option)
    splits = [s.result != REPLICATE for s in option]
    is_kept = any(splits) and not any(s.is_freed for s in option)
    return None if is_kept or any(s.state for s in option) else sum(splits)


def _megatron(tracks: _Tracks, value: ProgramValue, option: Option) -> float | None:
    """Split the batch, and weights of linear layers by columns and rows along the last axis."""
    is_allowed = tracks.is_tensor_parallel(value, option[-1])
    return _on_data_axes(tracks, value, option) if is_allowed else None


def _megatron_sequence(tracks: _Tracks, value: ProgramValue, option: Option) -> float | None:
    """Split as Megatron, and the sequence along the last axis outside of the pairs of layers."""
    last = option[-1]
    is_outside = not value.is_parameter and not tracks.is_layer(value)
    is_outside = is_outside and value.name not in tracks.inside
    is_split = is_outside and tracks.splits_sequence(value, last)
    if not is_split and not tracks.is_tensor_parallel(value, last):
        return None
    grade = _on_data_axes(tracks, value, option)
    return grade if grade is None else grade + 0.5 * is_split


def _on_data_axes(tracks: _Tracks, value: ProgramValue, option: Option) -> float | None:
    if any(s.state or s.is_freed for s in option):
        return None
    return _data(tracks, value, option[:-1])


MEGATRON = "Megatron"
HAND_PLANS: dict[str, Kind] = {
    "DDP": _ddp,
    "FSDP": _fsdp,
    MEGATRON: _megatron,
    "Megatron + sequence": _megatron_sequence,
}
"""Name of a hand plan -> its preference among the options of a value."""


@takes(graph=an(MaseGraph), mesh=an(Mesh))
def hand_plans(graph: MaseGraph, mesh: Mesh, *, training: bool = True) -> dict[str, Plan]:
    """Return the hand plans of an annotated graph by name, whether they fit in memory or not."""
    return hand_plans_of(program_of(graph), mesh, training=training)


def hand_plan(graph: MaseGraph, mesh: Mesh, name: str, *, training: bool = True) -> Plan:
    """Return one hand plan of an annotated graph; `name`: a name of `HAND_PLANS`."""
    return hand_plans_of(program_of(graph), mesh, training=training, names=[name])[name]


def hand_plans_of(
    program: Program, mesh: Mesh, *, training: bool, names: Sequence[str] = tuple(HAND_PLANS)
) -> dict[str, Plan]:
    """Return the hand plans of a program with these names."""
    tracks = _Tracks(tracked_dims(program, 0), tracked_dims(program, 1), _inside(program))
    setting = Setting(mesh, training, shards_states=training)
    return {name: _restricted(program, setting, tracks, HAND_PLANS[name]) for name in names}


def _restricted(program: Program, setting: Setting, tracks: _Tracks, kind: Kind) -> Plan:
    """Return the best plan among the most preferred options of every value."""
    preferred: dict[Any, list[Option]] = {}
    choices = {}
    for value in program.values:
        key = (structure_of(value), tracks.of(value))
        if key not in preferred:
            preferred[key] = _best_options(tracks, value, kind, options_of(value, setting))
        choices[value.name] = preferred[key]
    problem = PlanningProblem(program, setting, choices=choices)
    optimum = Solver(problem).solve()
    decisions = decisions_of(problem, optimum.best)
    cost = price_decisions(program, setting.mesh, decisions, training=setting.training)
    step = cost.step_seconds
    return Plan(
        setting.mesh,
        setting.training,
        decisions.options,
        cost,
        False,
        step,
        0.0,
        decisions.published,
    )


def _best_options(
    tracks: _Tracks, value: ProgramValue, kind: Kind, options: list[Option]
) -> list[Option]:
    """Return the options of the highest preference; the first option if none is allowed."""
    grades = [kind(tracks, value, option) for option in options]
    best = max((grade for grade in grades if grade is not None), default=None)
    pairs = zip(options, grades, strict=True)
    return [o for o, grade in pairs if grade == best] if best is not None else options[:1]


def comparison_records(plan: Plan, others: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Return one record per plan: step, memory, whether it fits, and time relative to `plan`."""
    limit = plan.mesh.memory
    step = plan.cost.step_seconds
    return [
        {
            "plan": name,
            "step_ms": each.cost.step_seconds * 1e3,
            "arithmetic_ms": each.cost.compute_seconds * 1e3,
            "communication_ms": each.cost.communication_seconds * 1e3,
            "memory_gb": each.cost.memory_bytes / 1e9,
            "fits": limit is None or each.cost.memory_bytes <= limit,
            "times_slower": each.cost.step_seconds / step if step else 1.0,
        }
        for name, each in {"this plan": plan, **others}.items()
    ]
