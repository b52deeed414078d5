"""A sharding plan: one strategy for every value, chosen to take least time within the memory.

On a mesh of one axis (or one of more than one device) the plan is the best there is by the model,
unless memory binds: then the price of a byte is raised until the plan fits. Of two axes each is
planned exactly given the other, in both orders, and the better plan is kept.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chop.arguments import FUNCTION, an, takes
from chop.distributed.layouts import Layout, Use
from chop.distributed.mesh import Mesh
from chop.distributed.program import Program, Value, program_of
from chop.distributed.search import solve
from chop.distributed.strategies import WHOLE, Strategy
from chop.distributed.variables import (
    Chosen,
    PricedStrategy,
    Variable,
    local_bytes,
    priced,
    variables,
)
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

TIE_SECONDS_PER_BYTE = 1e-18
"""Of two plans that take the same time, the one that holds less."""
RAISES, HALVINGS = 14, 8
"""How often the price of memory is raised, then refined, until the plan fits."""


@dataclass(frozen=True)
class Talk:
    """One collective of a step: on which value, along which mesh axis, for how long."""

    value: str
    axis: int
    collective: str
    seconds: float


@dataclass(frozen=True)
class Cost:
    """What a step costs on each device, by the model."""

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
        """How often each collective is called."""
        return dict(sorted(Counter(talk.collective for talk in self.talks).items()))

    @property
    def step_seconds(self) -> float:
        """Arithmetic and talking, one after the other."""
        return self.compute_seconds + self.communication_seconds

    def record(self) -> dict[str, Any]:
        """Plain data: the sums, and every collective."""
        sums = ("step_seconds", "compute_seconds", "communication_seconds")
        sizes = ("parameter_bytes", "memory_bytes", "collectives")
        return {n: getattr(self, n) for n in (*sums, *sizes)} | {
            "talks": [asdict(talk) for talk in self.talks]
        }


@dataclass(frozen=True)
class Plan:
    """A strategy for each value along each mesh axis, and what it costs.

    `is_exact`: no plan is faster by the model. `fastest_seconds`: a plan without limit on memory;
    no plan within the limit is faster.
    """

    mesh: Mesh
    training: bool
    strategies: Mapping[str, tuple[Strategy, ...]]
    cost: Cost
    is_exact: bool
    fastest_seconds: float

    def layouts(self, value: str) -> tuple[Layout, ...]:
        """How a value is laid out, one entry a mesh axis."""
        return tuple(s.result for s in self.strategies[value])

    def uses(self, value: str, operand: str) -> tuple[Use, ...]:
        """How a value reads an operand, one entry a mesh axis."""
        return tuple(s.use(operand) for s in self.strategies[value])

    def record(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "mesh": asdict(self.mesh),
            "training": self.training,
            "is_exact": self.is_exact,
            "fastest_seconds": self.fastest_seconds,
            "cost": self.cost.record(),
            "strategies": {n: [s.record() for s in each] for n, each in self.strategies.items()},
        }


@dataclass(frozen=True)
class _Found:
    chosen: dict[int, Chosen]
    cost: Cost
    is_exact: bool


@takes(graph=an(MaseGraph), mesh=an(Mesh))
def make_plan(graph: MaseGraph, mesh: Mesh, *, training: bool = True) -> Plan:
    """The plan for an annotated graph on `mesh`."""
    program = program_of(graph)
    _check_mesh_is_of_use(program, mesh)

    def at(rate: float) -> _Found:
        return _plan_axes(program, mesh, training, rate + TIE_SECONDS_PER_BYTE)

    fastest = at(0.0)
    found = _fit(fastest, at, mesh)
    return Plan(
        mesh,
        training,
        _by_value(program, mesh, found.chosen),
        found.cost,
        found.is_exact and found is fastest,
        fastest.cost.step_seconds,
    )


@takes(graph=an(MaseGraph), mesh=an(Mesh), pick=FUNCTION)
def fixed_plan(
    graph: MaseGraph, mesh: Mesh, pick: Callable[[Value], Strategy | None], *, training: bool = True
) -> Plan:
    """A plan made by hand: `pick` gives the strategy of a value along the last axis of the mesh.

    None stands for whole; along the other axes every value is whole.
    """
    program = program_of(graph)
    last = len(mesh.shape) - 1
    chosen: dict[int, Chosen] = {
        i: {v.name: (pick(v) if i == last else None) or WHOLE for v in program.values}
        for i in range(len(mesh.shape))
    }
    cost = price(program, mesh, chosen, training=training)
    by_value = _by_value(program, mesh, chosen)
    return Plan(mesh, training, by_value, cost, False, cost.step_seconds)


def _check_mesh_is_of_use(program: Program, mesh: Mesh) -> None:
    for axis, devices in enumerate(mesh.shape):
        splits = any(len(v.layouts(devices)) > 1 for v in program.values)
        if devices > 1 and not splits:
            raise ConfigError(
                f"mesh_shape {list(mesh.shape)}: no tensor of the graph has a dimension that axis "
                f"{axis} of {devices} devices divides. Use another number of devices."
            )


def _fit(fastest: _Found, at: Callable[[float], _Found], mesh: Mesh) -> _Found:
    """The fastest plan found that fits on a device."""
    if mesh.memory is None or fastest.cost.memory_bytes <= mesh.memory:
        return fastest
    low = rate = fastest.cost.step_seconds / fastest.cost.memory_bytes / 64
    found = at(rate)
    for _ in range(RAISES):
        if found.cost.memory_bytes <= mesh.memory:
            break
        low, rate = rate, rate * 4
        found = at(rate)
    if found.cost.memory_bytes > mesh.memory:
        raise _too_little(found.cost, mesh)
    for _ in range(HALVINGS):
        middle = (low + rate) / 2
        trial = at(middle)
        if trial.cost.memory_bytes <= mesh.memory:
            rate, found = middle, min(found, trial, key=lambda f: f.cost.step_seconds)
        else:
            low = middle
    return found


def _too_little(cost: Cost, mesh: Mesh) -> ConfigError:
    memory = mesh.memory or 0
    missing = cost.memory_bytes - memory
    return ConfigError(
        f"mesh memory {memory} bytes: every one of the {mesh.devices} devices needs at least "
        f"{cost.memory_bytes} bytes ({cost.parameter_bytes} of parameters), {missing} more. "
        "Give more memory, more devices or a smaller batch."
    )


def _plan_axes(program: Program, mesh: Mesh, training: bool, rate: float) -> _Found:
    """Each axis given those before it, in every order of the axes that hold several devices."""
    whole: Chosen = {v.name: WHOLE for v in program.values}
    wide = [i for i, n in enumerate(mesh.shape) if n > 1]
    found = []
    for order in itertools.permutations(wide):
        chosen: dict[int, Chosen] = {i: whole for i, n in enumerate(mesh.shape) if n == 1}
        is_exact = len(wide) < 2
        for axis in order:
            solution = solve(variables(program, mesh, axis, chosen, training=training), rate)
            chosen[axis] = solution.chosen
            is_exact = is_exact and solution.is_exact
        cost = price(program, mesh, chosen, training=training)
        found.append(_Found(chosen, cost, is_exact))
    return min(found, key=lambda f: f.cost.step_seconds + rate * f.cost.memory_bytes)


def price(program: Program, mesh: Mesh, chosen: Mapping[int, Chosen], *, training: bool) -> Cost:
    """What a plan costs; a value read in one layout by several nodes is brought there once."""
    copies, talks = 0, []
    last: list[PricedStrategy] = []
    for index in range(len(mesh.shape)):
        others = {i: c for i, c in chosen.items() if i != index}
        made = _variables(program, mesh, index, others, chosen[index], training)
        last = [v.choices[0] for v in made]
        for variable, layout, use in _readings(made):
            copies += variable.reading(layout, use).bytes
            found = variable.collectives(layout, use)
            talks += [Talk(variable.name, index, name, seconds) for name, seconds in found]
    parameters = [_held(mesh, chosen, v) for v in program.values if v.is_parameter]
    peak = 0 if training else _peak(program, mesh, chosen)
    return Cost(
        compute_seconds=sum(c.price.seconds for c in last),
        parameter_bytes=sum(parameters),
        memory_bytes=sum(c.price.bytes for c in last) + copies + peak,
        talks=tuple(talks),
    )


def _variables(
    program: Program,
    mesh: Mesh,
    index: int,
    others: Mapping[int, Chosen],
    chosen: Chosen,
    training: bool,
) -> list[Variable]:
    """The decisions along one axis, already made."""
    axis = mesh.axis(index)
    made = []
    for value in program.values:
        local = value.localised([(c[value.name], mesh.shape[i]) for i, c in others.items()])
        only = priced(local, chosen[value.name], mesh, axis, training)
        made.append(Variable(local, axis, training, (only,)))
    return made


def _readings(made: list[Variable]) -> list[tuple[Variable, Layout, Use]]:
    """Every value with every use made of it, each once."""
    known = {v.name: v for v in made}
    uses = dict.fromkeys(u for v in made for u in v.choices[0].uses)
    return [(known[n], known[n].choices[0].strategy.result, use) for n, use in uses]


def _held(mesh: Mesh, chosen: Mapping[int, Chosen], value: Value) -> int:
    """Bytes of `value` on one device."""
    whole = value.localised([(chosen[i][value.name], n) for i, n in enumerate(mesh.shape)])
    return local_bytes(whole, "R", 1)


def _peak(program: Program, mesh: Mesh, chosen: Mapping[int, Chosen]) -> int:
    """The most bytes of activations alive at once on one device."""
    ends: dict[str, list[str]] = {}
    for name, readers in program.readers().items():
        ends.setdefault(readers[-1] if readers else name, []).append(name)
    alive: dict[str, int] = {}
    now = peak = 0
    for value in program.values:
        is_own = not value.is_parameter and not value.is_view
        alive[value.name] = _held(mesh, chosen, value) if is_own else 0
        now += alive[value.name]
        peak = max(peak, now)
        now -= sum(alive[name] for name in ends.get(value.name, ()))
    return peak


def _by_value(
    program: Program, mesh: Mesh, chosen: Mapping[int, Chosen]
) -> dict[str, tuple[Strategy, ...]]:
    axes = range(len(mesh.shape))
    return {v.name: tuple(chosen[i][v.name] for i in axes) for v in program.values}
