"""Sharding plan: one strategy per value, with the least modelled time that fits in memory.

With one axis of more than one device the plan is optimal by the model. If memory is the limit, a
price per byte is raised until the plan fits. With two such axes, each is planned exactly given the
other, in both orders, and the better plan is returned.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from chop.arguments import FUNCTION, an, takes
from chop.distributed.layouts import Layout, Use
from chop.distributed.mesh import Mesh
from chop.distributed.program import Program, ProgramValue, program_of
from chop.distributed.solver import solve
from chop.distributed.strategies import WHOLE, Strategy
from chop.distributed.variables import Chosen, PricedStrategy, local_bytes, variables
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

TIE_SECONDS_PER_BYTE = 1e-18
"""Price of a byte that breaks ties: of two equally fast plans, the smaller one is chosen."""
RAISES, HALVINGS = 14, 8
"""Steps that raise the price of memory fourfold, then steps that bisect it."""


@dataclass(frozen=True)
class Talk:
    """One collective of a step, with its value and mesh axis."""

    value: str
    axis: int
    collective: str
    seconds: float


@dataclass(frozen=True)
class Cost:
    """Modelled cost of a step on each device."""

    compute_seconds: float
    parameter_bytes: int
    memory_bytes: int
    talks: tuple[Talk, ...]

    @property
    def communication_seconds(self) -> float:
        """Time of all collectives."""
        return sum(talk.seconds for talk in self.talks)

    @property
    def collectives(self) -> dict[str, int]:
        """Calls of each collective."""
        return dict(sorted(Counter(talk.collective for talk in self.talks).items()))

    @property
    def step_seconds(self) -> float:
        """Time of arithmetic plus communication; they do not overlap."""
        return self.compute_seconds + self.communication_seconds

    def record(self) -> dict[str, Any]:
        """Return plain data: the sums, and every collective."""
        names = ["step_seconds", "compute_seconds", "communication_seconds"]
        names += ["parameter_bytes", "memory_bytes", "collectives"]
        sums = {name: getattr(self, name) for name in names}
        return sums | {"talks": [asdict(talk) for talk in self.talks]}


@dataclass(frozen=True)
class Plan:
    """Strategy of each value along each mesh axis, and the cost.

    `is_exact`: no plan is faster by the model. `fastest_seconds`: step time of the plan without a
    memory limit, a lower bound for plans within the limit.
    """

    mesh: Mesh
    training: bool
    strategies: Mapping[str, tuple[Strategy, ...]]
    cost: Cost
    is_exact: bool
    fastest_seconds: float

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
            "cost": self.cost.record(),
            "strategies": {n: [s.record() for s in each] for n, each in self.strategies.items()},
        }


@dataclass(frozen=True)
class _Candidate:
    chosen: dict[int, Chosen]
    cost: Cost
    is_exact: bool

    def plan(self, program: Program, mesh: Mesh, training: bool, fastest: float) -> Plan:
        axes = range(len(mesh.shape))
        by_value = {v.name: tuple(self.chosen[i][v.name] for i in axes) for v in program.values}
        return Plan(mesh, training, by_value, self.cost, self.is_exact, fastest)


@takes(graph=an(MaseGraph), mesh=an(Mesh))
def make_plan(graph: MaseGraph, mesh: Mesh, *, training: bool = True) -> Plan:
    """Return the plan for an annotated graph on `mesh`."""
    program = program_of(graph)
    for axis, devices in enumerate(mesh.shape):
        if devices > 1 and all(len(v.layouts(devices)) == 1 for v in program.values):
            raise ConfigError(
                f"mesh_shape {list(mesh.shape)}: no tensor of the graph has a dimension that axis "
                f"{axis} of {devices} devices divides. Use another number of devices."
            )

    def plan_at(rate: float) -> _Candidate:
        return _plan_axes(program, mesh, training, rate + TIE_SECONDS_PER_BYTE)

    fastest = plan_at(0.0)
    best = fastest
    if mesh.memory is not None and fastest.cost.memory_bytes > mesh.memory:
        best = replace(_fit(fastest.cost, plan_at, mesh, mesh.memory), is_exact=False)
    return best.plan(program, mesh, training, fastest.cost.step_seconds)


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
    last = len(mesh.shape) - 1
    chosen: dict[int, Chosen] = {
        i: {v.name: (pick(v) if i == last else None) or WHOLE for v in program.values}
        for i in range(len(mesh.shape))
    }
    cost = price(program, mesh, chosen, training=training)
    return _Candidate(chosen, cost, False).plan(program, mesh, training, cost.step_seconds)


def _fit(
    fastest: Cost, plan_at: Callable[[float], _Candidate], mesh: Mesh, memory: int
) -> _Candidate:
    """Return the fastest plan within `memory` bytes among those at rising prices of memory."""
    low = rate = fastest.step_seconds / fastest.memory_bytes / 64
    best = plan_at(rate)
    for _ in range(RAISES):
        if best.cost.memory_bytes <= memory:
            break
        low, rate = rate, rate * 4
        best = plan_at(rate)
    needed = best.cost.memory_bytes
    if needed > memory:
        raise ConfigError(
            f"mesh memory {memory} bytes: every one of the {mesh.devices} devices needs at least "
            f"{needed} bytes ({best.cost.parameter_bytes} of parameters), {needed - memory} more. "
            "Give more memory, more devices or a smaller batch."
        )
    for _ in range(HALVINGS):
        middle = (low + rate) / 2
        trial = plan_at(middle)
        if trial.cost.memory_bytes <= memory:
            rate, best = middle, min(best, trial, key=lambda p: p.cost.step_seconds)
        else:
            low = middle
    return best


def _plan_axes(program: Program, mesh: Mesh, training: bool, rate: float) -> _Candidate:
    """Plan each axis given those before it, in every order of the axes of several devices."""
    whole: Chosen = {v.name: WHOLE for v in program.values}
    wide = [i for i, n in enumerate(mesh.shape) if n > 1]
    candidates = []
    for order in itertools.permutations(wide):
        chosen: dict[int, Chosen] = {i: whole for i, n in enumerate(mesh.shape) if n == 1}
        is_exact = len(wide) < 2
        for axis in order:
            solution = solve(variables(program, mesh, axis, chosen, training=training), rate)
            chosen[axis] = solution.chosen
            is_exact = is_exact and solution.is_exact
        cost = price(program, mesh, chosen, training=training)
        candidates.append(_Candidate(chosen, cost, is_exact))
    return min(candidates, key=lambda c: c.cost.step_seconds + rate * c.cost.memory_bytes)


def price(program: Program, mesh: Mesh, chosen: Mapping[int, Chosen], *, training: bool) -> Cost:
    """Return the cost of a plan; several readers of a value in one layout share one collective."""
    copies, talks = 0, []
    last: list[PricedStrategy] = []
    for index in range(len(mesh.shape)):
        others = {i: c for i, c in chosen.items() if i != index}
        fixed = variables(program, mesh, index, others, training=training, chosen=chosen[index])
        last = [v.choices[0] for v in fixed]
        by_name = {v.name: v for v in fixed}
        for name, use in dict.fromkeys(reading for choice in last for reading in choice.uses):
            variable, layout = by_name[name], by_name[name].choices[0].strategy.result
            copies += variable.reading(layout, use).bytes
            calls = variable.collectives(layout, use)
            talks += [Talk(name, index, collective, seconds) for collective, seconds in calls]
    parameters = [_local_size(mesh, chosen, v) for v in program.values if v.is_parameter]
    peak = 0 if training else _peak(program, mesh, chosen)
    return Cost(
        compute_seconds=sum(c.price.seconds for c in last),
        parameter_bytes=sum(parameters),
        memory_bytes=sum(c.price.bytes for c in last) + copies + peak,
        talks=tuple(talks),
    )


def _local_size(mesh: Mesh, chosen: Mapping[int, Chosen], value: ProgramValue) -> int:
    """Return the bytes of `value` on one device."""
    local = value.localised([(chosen[i][value.name], n) for i, n in enumerate(mesh.shape)])
    return local_bytes(local, "R", 1)


def _peak(program: Program, mesh: Mesh, chosen: Mapping[int, Chosen]) -> int:
    """Return the largest number of bytes of activations alive at once on one device."""
    ends: dict[str, list[str]] = {}
    for name, readers in program.readers().items():
        ends.setdefault(readers[-1] if readers else name, []).append(name)
    alive: dict[str, int] = {}
    now = peak = 0
    for value in program.values:
        is_own = not value.is_parameter and not value.is_view
        alive[value.name] = _local_size(mesh, chosen, value) if is_own else 0
        now += alive[value.name]
        peak = max(peak, now)
        now -= sum(alive[name] for name in ends.get(value.name, ()))
    return peak
