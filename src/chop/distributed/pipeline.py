"""Pipeline of stages with micro-batches (1F1B) on top of sharding plans.

Every stage has its own mesh of devices and runs consecutive segments of the program. Stage s of P
(from 0) stores the activations of min(P − s, m) micro-batches at once, for m micro-batches per
step. With the time tₛ of one micro-batch and gₛ of the work once per step (gradients, optimizer
state), a step takes

    Σ tₛ + max over s of ((m − 1) tₛ + gₛ)

The first term fills and drains the pipeline. Each stage has the plan with the least m tₛ + gₛ that
fits in its memory. The cut points are optimal for these plans: for every bound of the second term,
dynamic programming over the cut points minimises the first term.

Between two stages a value is sent in its most divided layout, so that each link carries one part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chop.arguments import an, takes
from chop.distributed.conversions import shares
from chop.distributed.domains import Setting
from chop.distributed.memory_search import Solver
from chop.distributed.mesh import Mesh
from chop.distributed.optimum import EXACT_GAP, Assignment, DoesNotFitError, Load, Optimum
from chop.distributed.plan import RESERVES, Plan, check_divisible, decisions_of_values
from chop.distributed.pricing import price_decisions
from chop.distributed.problem import PlanningProblem
from chop.distributed.program import Program, program_of
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

MAX_CUTS = 80
"""Cut points above which stages consist of whole periods of the repeated segments."""

RATES = (*(0.06 * 1.8**k for k in range(7)), 1e6)
"""Prices of memory, relative to the time of the first stage over its bytes; the last is for fit."""
GOAL = 4e-3
"""Relative gap at which a stage is solved well enough."""
HOPELESS = 1.25
"""Time of a stage, relative to a whole known pipeline, from which longer stages are not tried."""


@dataclass(frozen=True)
class PipelineStage:
    """Stage of a pipeline: its values, and its cost on each of its devices.

    `seconds`: per micro-batch, with receiving its input. `step_seconds`: once per step.
    `in_flight`: micro-batches whose activations are stored at once. `gap`: of its plan.
    """

    first: str
    last: str
    values: int
    seconds: float
    step_seconds: float
    memory_bytes: int
    in_flight: int
    gap: float


@dataclass(frozen=True)
class PipelinePlan:
    """Stages of a pipeline, and the plan of all values for one micro-batch."""

    plan: Plan
    stages: tuple[PipelineStage, ...]
    micro_batches: int

    @property
    def step_seconds(self) -> float:
        """Time of one step with all micro-batches."""
        return _step_seconds([(s.seconds, s.step_seconds) for s in self.stages], self.micro_batches)

    @property
    def bubble(self) -> float:
        """Share of the step in which the busiest stage waits."""
        busy = max(self.micro_batches * s.seconds + s.step_seconds for s in self.stages)
        return 1 - busy / self.step_seconds if self.step_seconds else 0.0

    @property
    def gap(self) -> float:
        """Largest gap of the plan of a stage."""
        return max(stage.gap for stage in self.stages)

    def record(self) -> dict[str, Any]:
        """Return plain data."""
        sums = {name: getattr(self, name) for name in ("step_seconds", "bubble", "gap")}
        stages = [asdict(stage) for stage in self.stages]
        return {"micro_batches": self.micro_batches, **sums, "stages": stages}


def _step_seconds(costs: list[tuple[float, float]], micro_batches: int) -> float:
    rest = max((micro_batches - 1) * seconds + once for seconds, once in costs)
    return sum(seconds for seconds, _ in costs) + rest


@takes(graph=an(MaseGraph), mesh=an(Mesh))
def make_pipeline(
    graph: MaseGraph, mesh: Mesh, *, stages: int, micro_batches: int = 1, training: bool = True
) -> PipelinePlan:
    """Return the pipeline of `stages`, each on its own `mesh`.

    The graph must be annotated at the shapes of one micro-batch.
    """
    program = program_of(graph)
    check_divisible(program, mesh)
    return plan_pipeline(
        program, mesh, stages=stages, micro_batches=micro_batches, training=training
    )


def plan_pipeline(
    program: Program, mesh: Mesh, *, stages: int, micro_batches: int, training: bool
) -> PipelinePlan:
    """Return the pipeline for the values of a graph."""
    if stages < 1 or micro_batches < 1:
        raise ConfigError(
            f"pipeline: stages and micro_batches must be 1 or more, got {stages} and "
            f"{micro_batches}."
        )
    saves = training and mesh.memory is not None
    problem = PlanningProblem(program, Setting(mesh, training, saves, saves))
    aside = 0
    for _ in range(RESERVES):
        memory = None if mesh.memory is None else mesh.memory - aside
        cutter = _Cutter(problem, stages, micro_batches, memory)
        trial_plan = cutter.pipeline(cutter.best_cuts())
        needed = max(stage.memory_bytes for stage in trial_plan.stages)
        if mesh.memory is None or needed <= mesh.memory:
            return trial_plan
        aside = max(aside + 1, needed - mesh.memory)
    raise ConfigError(
        f"mesh memory {mesh.memory} bytes: a stage of the pipeline needs {needed} bytes. Give more "
        "memory, more stages, more devices or a smaller batch."
    )


@dataclass(frozen=True)
class _Cost:
    """Optimum of the segments of a stage, and its times."""

    optimum: Optimum
    seconds: float
    once: float


class _Cutter:
    """Search for the cut points of a pipeline."""

    def __init__(
        self, problem: PlanningProblem, stages: int, micro_batches: int, memory: int | None
    ) -> None:
        self.problem, self.stages, self.micro_batches = problem, stages, micro_batches
        self.memory = memory
        self.segments = problem.segments
        self.crossing = dict(self._crossings())
        self.points = [0, *self._cut_points(), len(self.segments)]
        if len(self.points) <= stages:
            raise ConfigError(
                f"pipeline: {stages} stages, but the model can be cut at {len(self.points) - 2} "
                f"places only, into at most {len(self.points) - 1} stages."
            )
        self._costs: dict[Any, _Cost | None] = {}
        self._scale = 0.0

    # -- cut points ----------------------------------------------------------------------------

    def _crossings(self) -> Iterator[tuple[int, str]]:
        """Yield each place where exactly one variable crosses, with that variable."""
        last: dict[str, int] = {}
        first: dict[str, int] = {}
        for i, segment in enumerate(self.segments):
            for name in segment.names.values():
                value = name.removesuffix(" published")
                is_read = name == self.problem.variable(value)
                if is_read and self._is_sent(value):
                    first.setdefault(name, i)
                    last[name] = i
        for i in range(1, len(self.segments)):
            crossing = [n for n in first if first[n] < i <= last[n]]
            if len(crossing) == 1 and not crossing[0].startswith("parameter "):
                yield i, crossing[0]

    def _is_sent(self, name: str) -> bool:
        """Return True if a later stage cannot compute a value from the inputs alone."""
        value = self.problem.values[name]
        return value.is_learnt or value.is_parameter

    def _cut_points(self) -> list[int]:
        points = list(self.crossing)
        if len(points) <= MAX_CUTS:
            return points
        period = self._period()
        return [point for point in points if point % period == 0]

    def _period(self) -> int:
        """Return the number of segments after which the middle of the program repeats."""
        kinds = [id(segment.kind) for segment in self.segments]
        middle = kinds[len(kinds) // 4 : 3 * len(kinds) // 4]
        periods = range(1, len(middle) // 2)
        return next((p for p in periods if middle[p:] == middle[:-p]), 1)

    # -- stages --------------------------------------------------------------------------------

    def pins(self, start: int, end: int) -> dict[str, int]:
        """Return the options of the values that enter and leave the segments `start` to `end`."""
        names = [self.crossing[place] for place in (start, end) if place in self.crossing]
        return {name: self._most_divided(name) for name in names}

    def _most_divided(self, name: str) -> int:
        face = self.problem.face(name.removesuffix(" published"))
        return int(shares(face.layouts, self.problem.setting.mesh).argmin())

    def cost(self, start: int, end: int, in_flight: int) -> _Cost | None:
        """Return the optimum of a stage, solved once for equal stages; None if it does not fit."""
        kinds = tuple(id(s.kind) for s in self.segments[start:end])
        key = (kinds, start in self.crossing, end in self.crossing, in_flight)
        if key not in self._costs:
            self._costs[key] = self._solved(start, end, in_flight)
        return self._costs[key]

    def _solved(self, start: int, end: int, in_flight: int) -> _Cost | None:
        try:
            optimum = self._optimum(self._solver(start, end, in_flight))
        except DoesNotFitError:
            return None
        return self._cost_of(start, optimum)

    def refined(self, start: int, end: int, in_flight: int) -> _Cost:
        """Return the optimum of a stage that fits, at prices of memory of its own."""
        cost = self.cost(start, end, in_flight)
        assert cost is not None, "a stage was chosen but does not fit"
        if self.memory is None or cost.optimum.gap <= GOAL:
            return cost
        optimum = self._solver(start, end, in_flight).solve(self.memory)
        best = min(cost.optimum.best, optimum.best, key=lambda a: a.seconds)
        bound = max(cost.optimum.bound, optimum.bound)
        return self._cost_of(start, Optimum(best, min(bound, best.seconds)))

    def _solver(self, start: int, end: int, in_flight: int) -> Solver:
        overlaps = self.problem.setting.mesh.overlaps
        load = Load(self.micro_batches, in_flight, overlaps)
        return Solver(self.problem, self.segments[start:end], load, self.pins(start, end), GOAL)

    def _cost_of(self, start: int, optimum: Optimum) -> _Cost:
        load, parts = optimum.best.load, optimum.best.parts
        seconds = float(load.micro_seconds(parts).sum()) + self._sending(start)
        return _Cost(optimum, seconds, float(load.once_seconds(parts).sum()))

    def _optimum(self, solver: Solver) -> Optimum:
        """Return the optimum of a stage; all stages try the same prices of memory."""
        fast = solver.solve()
        if self.memory is None or fast.best.needs <= self.memory:
            return fast
        self._scale = self._scale or fast.best.seconds / fast.best.bytes
        return solver.solve_on([self._scale * rate for rate in RATES], self.memory)

    def _sending(self, start: int) -> float:
        """Return the seconds to receive the input of a stage, and to return its gradient."""
        if start not in self.crossing:
            return 0.0
        name = self.crossing[start]
        mesh, value = self.problem.setting.mesh, name.removesuffix(" published")
        layouts = self.problem.face(value).layouts[self._most_divided(name)]
        size = self.problem.values[value].size * float(shares(layouts[None], mesh)[0])
        link = mesh.axis(0)
        times = 2 if self.problem.setting.training else 1
        return times * (link.latency + size / link.bandwidth)

    def in_flight(self, stage: int) -> int:
        """Return the micro-batches that `stage` stores at once."""
        is_training = self.problem.setting.training
        return min(self.stages - stage, self.micro_batches) if is_training else 1

    # -- dynamic programming -------------------------------------------------------------------

    def best_cuts(self) -> list[int]:
        """Return the optimal cut points, with 0 and the number of segments at the ends."""
        times, rests = self._tables()
        best, cuts = np.inf, None
        for bound in np.unique(rests[np.isfinite(rests)]):
            if bound >= best:
                break
            fill, trial = self._fill(np.where(rests <= bound, times, np.inf))
            if fill + bound < best:
                best, cuts = fill + bound, trial
        if cuts is None:
            raise self._does_not_fit()
        return [self.points[i] for i in cuts]

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return tₛ and (m − 1) tₛ + gₛ for each stage and pair of points; infinite if too large.

        Longer stages are not computed once a stage from the same point does not fit, or is slower
        than `HOPELESS` times a pipeline that is known. A longer stage has more work; only the
        conversion at its end can be cheaper.
        """
        count = len(self.points)
        times = np.full((self.stages, count, count), np.inf)
        rests = times.copy()
        even = self._even_seconds()
        for stage in range(self.stages):
            for i in self._starts(stage):
                for j in self._ends(stage, i):
                    cost = self.cost(self.points[i], self.points[j], self.in_flight(stage))
                    if cost is None:
                        break  # more segments do not fit either
                    times[stage, i, j] = cost.seconds
                    rests[stage, i, j] = (self.micro_batches - 1) * cost.seconds + cost.once
                    if cost.optimum.bound > HOPELESS * even:
                        break
        return times, rests

    def _starts(self, stage: int) -> range:
        last = len(self.points) - 1
        return range(1) if stage == 0 else range(stage, last - (self.stages - stage) + 1)

    def _ends(self, stage: int, start: int) -> range:
        last = len(self.points) - 1
        if stage == self.stages - 1:
            return range(last, last + 1)
        return range(start + 1, last - (self.stages - stage - 1) + 1)

    def _even_seconds(self) -> float:
        """Return the time of a pipeline of equal stages; infinite if it does not fit."""
        places = np.linspace(0, len(self.points) - 1, self.stages + 1).round().astype(int)
        points = [self.points[i] for i in places]
        costs = []
        for stage in range(self.stages):
            cost = self.cost(points[stage], points[stage + 1], self.in_flight(stage))
            if cost is None:
                return float("inf")
            costs.append((cost.seconds, cost.once))
        return _step_seconds(costs, self.micro_batches)

    def _fill(self, times: np.ndarray) -> tuple[float, list[int]]:
        """Return the least sum of stage times, and the indices of its points."""
        count = times.shape[-1]
        best = np.full(count, np.inf)
        best[0] = 0.0
        origins = []
        for stage in times:
            totals = best[:, None] + stage
            origins.append(totals.argmin(axis=0))
            best = totals.min(axis=0)
        cuts = [count - 1]
        for origin in reversed(origins):
            cuts.append(int(origin[cuts[-1]]))
        return float(best[-1]), cuts[::-1]

    def _does_not_fit(self) -> ConfigError:
        return ConfigError(
            f"mesh memory {self.memory} bytes: no cut into {self.stages} stages fits with "
            f"{self.micro_batches} micro-batches. Give more memory, more stages, more devices or a "
            "smaller batch."
        )

    # -- result --------------------------------------------------------------------------------

    def pipeline(self, cuts: list[int]) -> PipelinePlan:
        """Return the pipeline with these cut points."""
        values: dict[str, int] = {}
        recomputed: list[int] = []
        costs = []
        for stage, (start, end) in enumerate(itertools.pairwise(cuts)):
            cost = self.refined(start, end, self.in_flight(stage))
            best: Assignment = cost.optimum.best
            values |= self._values(start, end, best)
            recomputed += [start + i for i in best.recomputed]
            costs.append(cost)
        plan = self._plan(values, recomputed, costs)
        is_training = self.problem.setting.training
        spare = 0 if is_training else plan.cost.transient_bytes
        stages = [
            self._stage(number, (cuts[number], cuts[number + 1]), cost, spare)
            for number, cost in enumerate(costs)
        ]
        return PipelinePlan(plan, tuple(stages), self.micro_batches)

    def _values(self, start: int, end: int, best: Assignment) -> dict[str, int]:
        return best.values(self.segments[start:end])

    def _plan(self, values: Mapping[str, int], recomputed: list[int], costs: list[_Cost]) -> Plan:
        problem, setting = self.problem, self.problem.setting
        decisions = decisions_of_values(problem, values, recomputed)
        cost = price_decisions(problem.program, setting.mesh, decisions, training=setting.training)
        is_exact = max(c.optimum.gap for c in costs) <= EXACT_GAP
        return Plan(
            setting.mesh,
            setting.training,
            decisions.options,
            cost,
            is_exact,
            cost.step_seconds,
            0.0,
            decisions.published,
            tuple(tuple(names) for names in decisions.recomputed),
        )

    def _stage(self, number: int, place: tuple[int, int], cost: _Cost, spare: int) -> PipelineStage:
        names = [n for s in self.segments[slice(*place)] for n in s.values]
        return PipelineStage(
            first=names[0],
            last=names[-1],
            values=len(names),
            seconds=cost.seconds,
            step_seconds=cost.once,
            memory_bytes=round(cost.optimum.best.needs) + spare,
            in_flight=self.in_flight(number),
            gap=cost.optimum.gap,
        )
