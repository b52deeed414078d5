"""Least time within a memory limit, with a proved lower bound.

Without a limit, elimination finds the optimum. With a limit M, every price `rate` ≥ 0 of a byte
gives a lower bound: the least time + rate × (bytes − M) over all assignments. The rate of the
highest bound is found by secants between a fast assignment that does not fit and one that fits.

Three ways then lower the best time: assignments that are priced low in some segments and high in
the others, and for small problems all assignments by rising regret, until the gap is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chop.distributed.domains import AGAIN, PARTS, SECONDS, STATIC, STEP, STORED
from chop.distributed.elimination import (
    CostTable,
    Elimination,
    EliminationStep,
    assignments,
    best_assignment,
    eliminate,
)
from chop.distributed.problem import RECOMPUTE, PartWeights, PlanningProblem, Segment

TIE_RATE = 1e-18
"""Seconds per byte that break ties: of two equally fast plans, the smaller one is chosen."""
SECANTS = 24
"""Most prices of memory that are tried; each step removes a corner of a convex hull."""
SMALL_PROBLEM = 150
"""Most variables of a problem whose assignments are enumerated."""
MAX_PARTIAL = 20_000
"""Most partial assignments that the enumeration visits."""
EXACT_GAP = 1e-6
"""Relative gap below which an optimum is called exact."""


@dataclass(frozen=True)
class Load:
    """Micro-batches per step and in flight; the latter store their activations together."""

    micro_batches: int = 1
    in_flight: int = 1

    def weights(self, rate: float) -> PartWeights:
        """Return the weights of the objective at `rate` seconds per byte."""
        return PartWeights(rate, self.micro_batches, self.in_flight)

    def seconds(self, parts: np.ndarray) -> float:
        """Return the seconds of one step; `AGAIN` holds only what is recomputed."""
        return float(self.micro_batches * (parts[SECONDS] + parts[AGAIN]) + parts[STEP])

    def bytes(self, parts: np.ndarray) -> float:
        """Return the bytes of one device."""
        return float(parts[STATIC] + self.in_flight * parts[STORED])


@dataclass(frozen=True)
class Assignment:
    """Option of every variable of each segment by local name, and the cost by part.

    `rate`: the highest price of a byte at which it was found.
    """

    local: tuple[Mapping[str, int], ...]
    parts: np.ndarray
    seconds: float
    bytes: float
    rate: float

    @property
    def recomputed(self) -> list[int]:
        """Segments that are recomputed."""
        return [i for i, values in enumerate(self.local) if values.get(RECOMPUTE)]

    def values(self, segments: Sequence[Segment]) -> dict[str, int]:
        """Return the option of every variable of the problem."""
        pairs = zip(segments, self.local, strict=True)
        return {
            segment.names[name]: value
            for segment, values in pairs
            for name, value in values.items()
            if name != RECOMPUTE
        }


@dataclass(frozen=True)
class Optimum:
    """Best assignment that fits, and a proved lower bound of the seconds of all that fit."""

    best: Assignment
    bound: float

    @property
    def gap(self) -> float:
        """Relative distance between the best assignment and the bound."""
        best = self.best.seconds
        return max(0.0, (best - self.bound) / best) if best > 0 else 0.0


class DoesNotFitError(Exception):
    """No assignment fits; `least` has the fewest bytes."""

    def __init__(self, least: Assignment) -> None:
        super().__init__(f"needs {least.bytes} bytes")
        self.least = least


class Solver:
    """Optimum over consecutive segments of a problem.

    `pins`: options of variables between segments that are decided already.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        segments: Sequence[Segment] | None = None,
        load: Load | None = None,
        pins: Mapping[str, int] | None = None,
    ) -> None:
        self.segments = list(problem.segments if segments is None else segments)
        self.load = load or Load()
        self.pins = pins or {}

    def solve(self, memory: float | None = None) -> Optimum:
        """Return the optimum within `memory` bytes; raise `DoesNotFitError` if there is none."""
        fast, bound = self.at([TIE_RATE] * len(self.segments))
        if memory is None or fast.bytes <= memory:
            return Optimum(fast, min(bound, fast.seconds))
        return self._within(memory, fast, bound)

    def solve_on(self, rates: Sequence[float], memory: float) -> Optimum:
        """Return the best assignment within `memory` among those at rising `rates` and mixtures.

        Solvers that use the same rates share the eliminations of their segments.
        """
        count = len(self.segments)
        trials = [(rate, *self.at([rate] * count)) for rate in (TIE_RATE, *rates)]
        bound = max(cost - rate * memory for rate, _, cost in trials)
        fitting = [a for _, a, _ in trials if a.bytes <= memory]
        if not fitting:
            raise DoesNotFitError(trials[-1][1])
        best = min(fitting, key=lambda a: a.seconds)
        larger = [rate for rate, a, _ in trials if a.bytes > memory and rate < best.rate]
        if larger:
            mixtures = self._mixtures(max(larger), best.rate, memory, directions=1)
            best = min([best, *mixtures], key=lambda a: a.seconds)
        return Optimum(best, min(bound, best.seconds))

    def at(self, rates: Sequence[float]) -> tuple[Assignment, float]:
        """Return the best assignment at one price of a byte per segment, and the bound."""
        kinds = self._eliminated(rates)
        top = self._top(kinds)
        values = best_assignment(top.steps)
        local = []
        total = np.zeros(PARTS)
        for i, (segment, rate) in enumerate(zip(self.segments, rates, strict=True)):
            outer = {n: values[_global(segment, i, n)] for n in kinds[i].rest.scope}
            inner, parts = segment.kind.decode(self.load.weights(rate), outer)
            local.append(inner)
            total += parts
        return self._assignment(local, total, max(rates)), top.bound

    def _eliminated(self, rates: Sequence[float]) -> list[Elimination]:
        pairs = zip(self.segments, rates, strict=True)
        return [segment.kind.eliminate(self.load.weights(rate)) for segment, rate in pairs]

    def _top(self, kinds: Sequence[Elimination]) -> Elimination:
        """Eliminate the variables between segments, in the order of their last segment."""
        tables: list[CostTable] = []
        last: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for i, (segment, inner) in enumerate(zip(self.segments, kinds, strict=True)):
            scope = tuple(_global(segment, i, name) for name in inner.rest.scope)
            tables.append(CostTable(scope, inner.rest.costs))
            sizes.update(zip(scope, inner.rest.costs.shape, strict=True))
            last.update(dict.fromkeys(scope, i))
        for name in self.pins.keys() & last.keys():
            costs = np.full(sizes[name], np.inf)
            costs[self.pins[name]] = 0.0
            tables.append(CostTable((name,), costs))
        return eliminate(tables, sorted(last, key=lambda name: last[name]))

    def _assignment(
        self, local: Sequence[Mapping[str, int]], total: np.ndarray, rate: float
    ) -> Assignment:
        load = self.load
        return Assignment(tuple(local), total, load.seconds(total), load.bytes(total), rate)

    def _decoded(self, values: Mapping[str, int], rate: float) -> Assignment:
        """Return an assignment from the values of all variables."""
        local = [_local(segment, i, values) for i, segment in enumerate(self.segments)]
        parts = [s.kind.parts(v) for s, v in zip(self.segments, local, strict=True)]
        return self._assignment(local, np.sum(parts, axis=0), rate)

    def _within(self, memory: float, fast: Assignment, bound: float) -> Optimum:
        dear, cheap = self._bracket(memory, fast)
        best = cheap
        for _ in range(SECANTS):
            rate = (cheap.seconds - dear.seconds) / (dear.bytes - cheap.bytes)
            middle, cost = self.at([rate] * len(self.segments))
            bound = max(bound, cost - rate * memory)
            corner = dear.seconds + rate * dear.bytes
            if cost >= corner * (1 - 1e-12):  # the line through both is on the convex hull
                break
            if middle.bytes <= memory:
                cheap = middle
                best = min(best, middle, key=lambda a: a.seconds)
            else:
                dear = middle
        for trial in self._mixtures(dear.rate, cheap.rate, memory):
            best = min(best, trial, key=lambda a: a.seconds)
        return self._enumerated(best, bound, rate, memory)

    def _bracket(self, memory: float, fast: Assignment) -> tuple[Assignment, Assignment]:
        """Return `fast`, which does not fit, and an assignment that fits."""
        least, _ = self.at([1e6 * fast.seconds / fast.bytes] * len(self.segments))
        if least.bytes > memory:
            raise DoesNotFitError(least)
        return fast, least

    def _mixtures(
        self, low: float, high: float, memory: float, directions: int = 2
    ) -> Iterator[Assignment]:
        """Yield assignments that fit: the low price in as many segments as possible."""
        count = len(self.segments)
        orders: list[Callable[[int], list[float]]] = [
            lambda k: [high] * k + [low] * (count - k),
            lambda k: [low] * (count - k) + [high] * k,
        ]
        for rates in orders[:directions]:
            fits, fails = count, 0
            while fits - fails > 1:
                k = (fits + fails) // 2
                trial, _ = self.at(rates(k))
                if trial.bytes <= memory:
                    fits = k
                    yield trial
                else:
                    fails = k

    def _enumerated(self, best: Assignment, bound: float, rate: float, memory: float) -> Optimum:
        """Close the gap of a small problem: visit assignments until none can be better."""
        steps = self._all_steps(rate)
        if len(steps) > SMALL_PROBLEM:
            return Optimum(best, min(bound, best.seconds))
        start = self.at([rate] * len(self.segments))[1] - rate * memory
        for regret, values in assignments(steps, MAX_PARTIAL, best.seconds - start):
            bound = max(bound, min(start + regret, best.seconds))
            if start + regret >= best.seconds or values is None:
                break
            trial = self._decoded(values, rate)
            if trial.bytes <= memory and trial.seconds < best.seconds:
                best = trial
        return Optimum(best, min(bound, best.seconds))

    def _all_steps(self, rate: float) -> list[EliminationStep]:
        """Return the steps of all segments and of the variables between them."""
        kinds = self._eliminated([rate] * len(self.segments))
        steps = []
        for i, (segment, inner) in enumerate(zip(self.segments, kinds, strict=True)):
            steps += [_renamed(step, segment, i) for step in inner.steps]
        return steps + list(self._top(kinds).steps)


def _global(segment: Segment, index: int, name: str) -> str:
    """Return the variable of the problem for a local name of segment `index`."""
    return f"{RECOMPUTE} {index}" if name == RECOMPUTE else segment.names[name]


def _local(segment: Segment, index: int, values: Mapping[str, int]) -> dict[str, int]:
    """Return the values of a segment's variables by local name."""
    pairs = ((local, _global(segment, index, local)) for local in (RECOMPUTE, *segment.names))
    return {local: values[name] for local, name in pairs if name in values}


def _renamed(step: EliminationStep, segment: Segment, index: int) -> EliminationStep:
    def rename(table: CostTable) -> CostTable:
        return CostTable(tuple(_global(segment, index, n) for n in table.scope), table.costs)

    return EliminationStep(
        _global(segment, index, step.variable),
        tuple(rename(t) for t in step.tables),
        tuple(rename(m) for m in step.messages),
    )
