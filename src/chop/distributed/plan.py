"""Sharding plan: one strategy per value and mesh axis, with the least modelled time that fits.

All axes are planned together. The plan comes with a lower bound of the time of every plan that
fits in memory (`Plan.bound_seconds`), so `Plan.gap` is what a better plan could save at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chop.arguments import FUNCTION, an, takes
from chop.distributed.conversions import Codes, layout_of
from chop.distributed.domains import Face, Filter, Setting
from chop.distributed.layouts import Layout, Use
from chop.distributed.memory_search import Solver
from chop.distributed.mesh import Mesh
from chop.distributed.optimum import EXACT_GAP, Assignment, DoesNotFitError, Optimum
from chop.distributed.pricing import Cost, Decisions, Option, Talk, price_decisions
from chop.distributed.problem import PlanningProblem, published
from chop.distributed.program import Program, ProgramValue, program_of
from chop.distributed.strategies import WHOLE, Strategy
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

RESERVES = 4
"""Attempts to find a plan that also has room for what is alive for a moment only."""


@dataclass(frozen=True)
class Plan:
    """Strategy of each value along each mesh axis, and the cost.

    `is_exact`: no plan is faster by the model. `fastest_seconds`: step time of the plan without a
    memory limit. `bound_seconds`: proved lower bound of the step time of every plan that fits; 0
    if nothing is proved. `published`: layouts in which a value is provided to all its readers, if
    not those in which it is computed. `recomputed`: the values of each segment that is recomputed
    in backward.
    """

    mesh: Mesh
    training: bool
    strategies: Mapping[str, Option]
    cost: Cost
    is_exact: bool
    fastest_seconds: float
    bound_seconds: float = 0.0
    published: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)
    recomputed: tuple[tuple[str, ...], ...] = ()

    @property
    def gap(self) -> float:
        """Share of the step time that a better plan could save at most, by the model."""
        step = self.cost.step_seconds
        return max(0.0, 1 - self.bound_seconds / step) if step > 0 else 0.0

    @property
    def decisions(self) -> Decisions:
        """Strategies, published layouts and recomputed segments."""
        return Decisions(self.strategies, self.published, self.recomputed)

    def layouts(self, value: str) -> tuple[Layout, ...]:
        """Return the layouts of a value, one per mesh axis."""
        return tuple(s.result for s in self.strategies[value])

    def uses(self, value: str, operand: str) -> tuple[Use, ...]:
        """Return how a value reads an operand, one use per mesh axis."""
        return tuple(s.use(operand) for s in self.strategies[value])

    def record(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "mesh": asdict(self.mesh),
            "training": self.training,
            "is_exact": self.is_exact,
            "fastest_seconds": self.fastest_seconds,
            "bound_seconds": self.bound_seconds,
            "gap": self.gap,
            "cost": self.cost.record(),
            "strategies": {n: [s.record() for s in each] for n, each in self.strategies.items()},
            "published": {n: [list(use) for use in uses] for n, uses in self.published.items()},
            "recomputed": [list(names) for names in self.recomputed],
        }


@takes(graph=an(MaseGraph), mesh=an(Mesh))
def make_plan(
    graph: MaseGraph,
    mesh: Mesh,
    *,
    training: bool = True,
    pins: Mapping[str, Option] | None = None,
    allowed: Sequence[Filter] = (),
) -> Plan:
    """Return the plan for an annotated graph on `mesh`.

    `pins`: strategies of some values that the plan must have. `allowed`: restrictions of the
    options, each a function of a value and an option.
    """
    program = program_of(graph)
    check_divisible(program, mesh)
    return plan_program(
        program, mesh, training=training, allowed=[*allowed, *_pinned(program, pins)]
    )


def plan_program(
    program: Program, mesh: Mesh, *, training: bool, allowed: Sequence[Filter] = ()
) -> Plan:
    """Return the plan for the values of a graph.

    Strategies that only save memory (split optimizer state, freed copies, recomputing) are tried
    if the fastest plan does not fit.
    """
    problem = PlanningProblem(program, Setting(mesh, training), allowed)
    optimum = Solver(problem).solve()
    decisions = decisions_of(problem, optimum.best)
    cost = price_decisions(program, mesh, decisions, training=training)
    fastest = cost.step_seconds
    if mesh.memory is not None and cost.memory_bytes > mesh.memory:
        saving = PlanningProblem(program, Setting(mesh, training, training, training), allowed)
        decisions, cost, optimum = _within([saving, problem], mesh.memory)
    bound = min(optimum.bound, cost.step_seconds)
    is_exact = bound >= (1 - EXACT_GAP) * cost.step_seconds
    return Plan(
        mesh,
        training,
        decisions.options,
        cost,
        is_exact,
        fastest,
        bound,
        decisions.published,
        tuple(tuple(names) for names in decisions.recomputed),
    )


def _within(problems: Sequence[PlanningProblem], memory: int) -> tuple[Decisions, Cost, Optimum]:
    """Return the best plan within `memory` of the first problem that has one, with the bound.

    The solver does not know the activations that inference has alive at once. They are set aside
    from the memory of the next attempt. The bound is that of the first attempt.
    """
    bound: float | None = None
    for problem in problems:
        aside = 0
        for _ in range(RESERVES):
            try:
                optimum = Solver(problem).solve(memory - aside)
            except DoesNotFitError as error:
                if bound is None:
                    raise _too_small(problem, error.least, memory) from error
                break
            bound = optimum.bound if bound is None else bound
            decisions = decisions_of(problem, optimum.best)
            mesh, training = problem.setting.mesh, problem.setting.training
            cost = price_decisions(problem.program, mesh, decisions, training=training)
            if cost.memory_bytes <= memory:
                return decisions, cost, Optimum(optimum.best, bound)
            aside = max(aside + 1, round(cost.memory_bytes - optimum.best.needs))
    least, _ = Solver(problems[0]).at(1.0)
    raise _too_small(problems[0], least, memory)


def _too_small(problem: PlanningProblem, least: Assignment, memory: int) -> ConfigError:
    """Return the error that says how much memory is missing."""
    mesh, training = problem.setting.mesh, problem.setting.training
    decisions = decisions_of(problem, least)
    cost = price_decisions(problem.program, mesh, decisions, training=training)
    return ConfigError(
        f"mesh memory {memory} bytes: every one of the {mesh.devices} devices needs at least "
        f"{cost.memory_bytes} bytes ({cost.parameter_bytes} of parameters, "
        f"{cost.transient_bytes} for a moment only), {cost.memory_bytes - memory} more. Give more "
        "memory, more devices or a smaller batch."
    )


def check_divisible(program: Program, mesh: Mesh) -> None:
    """Raise a ConfigError if an axis of the mesh divides no dimension of any tensor."""
    for axis, devices in enumerate(mesh.shape):
        if devices > 1 and all(len(v.layouts(devices)) == 1 for v in program.values):
            raise ConfigError(
                f"mesh_shape {list(mesh.shape)}: no tensor of the graph has a dimension that axis "
                f"{axis} of {devices} devices divides. Use another number of devices."
            )


def decisions_of(problem: PlanningProblem, assignment: Assignment) -> Decisions:
    """Return an assignment as strategies, published layouts and recomputed segments."""
    values = assignment.values(problem.segments)
    return decisions_of_values(problem, values, assignment.recomputed)


def decisions_of_values(
    problem: PlanningProblem, values: Mapping[str, int], again: Sequence[int]
) -> Decisions:
    """Return the options of all variables as decisions; `again`: segments that are recomputed."""
    options = {n: domain.options[values[n]] for n, domain in problem.domains.items()}
    bare = Decisions(options, {})
    shared = {n: _uses(face, values[published(n)]) for n, face in problem.published.items()}
    changed = {n: uses for n, uses in shared.items() if uses != bare.own(n)}
    recomputed = [problem.segments[i].values for i in again]
    return Decisions(options, changed, recomputed)


def _uses(face: Face, index: int) -> tuple[Use, ...]:
    pairs = zip(_layouts(face.layouts, index), _layouts(face.gradients, index), strict=True)
    return tuple(Use(*pair) for pair in pairs)


def _layouts(codes: Codes, index: int) -> list[Layout]:
    return [layout_of(code) for code in codes[index].tolist()]


def _pinned(program: Program, pins: Mapping[str, Option] | None) -> list[Filter]:
    """Return the restriction to `pins`."""
    return [lambda value, option: pins.get(value.name, option) == option] if pins else []


@takes(graph=an(MaseGraph), mesh=an(Mesh), pick=FUNCTION)
def fixed_plan(
    graph: MaseGraph,
    mesh: Mesh,
    pick: Callable[[ProgramValue], Strategy | None],
    *,
    training: bool = True,
) -> Plan:
    """Return a manual plan: `pick` returns the strategy of a value along the last mesh axis.

    None means replicated. Along the other axes every value is replicated.
    """
    program = program_of(graph)
    others = (WHOLE,) * (len(mesh.shape) - 1)
    options = {v.name: (*others, pick(v) or WHOLE) for v in program.values}
    return priced_plan(program, mesh, options, training=training)


def priced_plan(
    program: Program, mesh: Mesh, options: Mapping[str, Option], *, training: bool
) -> Plan:
    """Return the plan with these strategies; the layouts for several readers are chosen."""
    setting = Setting(mesh, training)
    problem = PlanningProblem(program, setting, choices={n: [o] for n, o in options.items()})
    decisions = decisions_of(problem, Solver(problem).solve().best)
    cost = price_decisions(program, mesh, decisions, training=training)
    return Plan(mesh, training, options, cost, False, cost.step_seconds, 0.0, decisions.published)


def price(
    program: Program, mesh: Mesh, chosen: Mapping[int, Mapping[str, Strategy]], *, training: bool
) -> Cost:
    """Return the cost of the strategies `chosen` of each axis: mesh axis -> value -> strategy."""
    axes = range(len(mesh.shape))
    options = {v.name: tuple(chosen[i][v.name] for i in axes) for v in program.values}
    return priced_plan(program, mesh, options, training=training).cost


__all__ = [
    "Cost",
    "Plan",
    "Talk",
    "fixed_plan",
    "make_plan",
    "plan_program",
    "price",
    "priced_plan",
]
