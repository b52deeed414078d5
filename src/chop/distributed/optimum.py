"""Least time within a memory limit, with a proved lower bound.

Without a limit, elimination finds the optimum. With a limit M, every price `rate` ≥ 0 of a byte
gives a lower bound: the least time + rate × (bytes − M) over all assignments
(`chop.distributed.memory_search` finds the best prices). Arithmetic and communication that overlap
take the larger of two sums; every weighting of the two is a lower bound (`Twist`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from chop.distributed.domains import (
    AGAIN,
    AGAIN_TALK,
    ARITHMETIC,
    HIDDEN,
    HIDDEN_STEP,
    MOMENT,
    STATIC,
    STEP,
    STORED,
    TALK,
)
from chop.distributed.elimination import (
    CostTable,
    Elimination,
    EliminationStep,
    best_assignment,
    eliminate,
)
from chop.distributed.problem import (
    RECOMPUTE,
    LoweredSegment,
    PartWeights,
    PlanningProblem,
    Segment,
    Twist,
)

TIE_RATE = 1e-18
"""Seconds per byte that break ties: of two equally fast plans, the smaller one is chosen."""
TIE = 1e-8
"""Relative price that breaks ties: less memory for a moment, less hidden communication."""
EXACT_GAP = 1e-6
"""Relative gap below which an optimum is called exact."""
TWIST_ROUNDS = 8
"""Most times that the twists of the segments are refined for one bound."""
MOMENT_PRICES = (TIE, 1 / 16, 1 / 4, 1.0, 8.0, 1e3)
"""Prices of memory for a moment, relative to that of memory for the whole step."""
FINEST = 1 / 64
"""Smallest difference of two shares of arithmetic in a twist."""


@dataclass(frozen=True)
class Load:
    """Micro-batches per step and in flight; the latter store their activations together.

    `overlaps`: gathers of parameters and reductions of gradients overlap with arithmetic.
    """

    micro_batches: int = 1
    in_flight: int = 1
    overlaps: bool = False

    def weights(self, rate: float, cap: float = np.inf) -> PartWeights:
        """Return the weights of the objective at `rate` seconds per byte."""
        return PartWeights(rate, self.micro_batches, self.in_flight, cap, self.overlaps)

    def micro_seconds(self, parts: np.ndarray) -> np.ndarray:
        """Return the seconds of one micro-batch in each segment."""
        arithmetic, hidden = parts[..., ARITHMETIC] + parts[..., AGAIN], parts[..., HIDDEN]
        work = np.maximum(arithmetic, hidden) if self.overlaps else arithmetic + hidden
        return np.asarray(work + parts[..., TALK] + parts[..., AGAIN_TALK])

    def once_seconds(self, parts: np.ndarray) -> np.ndarray:
        """Return the seconds of a step that do not depend on the number of micro-batches.

        Communication once per step overlaps with the arithmetic of one micro-batch.
        """
        more = parts[..., HIDDEN_STEP]
        if self.overlaps:
            arithmetic, hidden = parts[..., ARITHMETIC] + parts[..., AGAIN], parts[..., HIDDEN]
            more = np.maximum(arithmetic, hidden + more) - np.maximum(arithmetic, hidden)
        return np.asarray(parts[..., STEP] + more)

    def seconds(self, parts: np.ndarray) -> np.ndarray:
        """Return the seconds of one step in each segment."""
        return np.asarray(self.micro_batches * self.micro_seconds(parts) + self.once_seconds(parts))

    def bytes(self, parts: np.ndarray) -> np.ndarray:
        """Return the bytes of each segment on one device, except those for a moment."""
        return np.asarray(parts[..., STATIC] + self.in_flight * parts[..., STORED])

    def windows(self, parts: np.ndarray) -> tuple[float, float]:
        """Return arithmetic and hidden communication of one step in one segment."""
        count = self.micro_batches
        arithmetic = count * (parts[ARITHMETIC] + parts[AGAIN])
        return float(arithmetic), float(count * parts[HIDDEN] + parts[HIDDEN_STEP])


@dataclass(frozen=True)
class Assignment:
    """Option of every variable of each segment by local name, and the cost by segment and part.

    `rate`: the highest price of a byte at which it was found.
    """

    local: tuple[Mapping[str, int], ...]
    parts: np.ndarray
    load: Load
    rate: float = 0.0

    @cached_property
    def seconds(self) -> float:
        """Time of one step."""
        return float(self.load.seconds(self.parts).sum())

    @cached_property
    def bytes(self) -> float:
        """Bytes of one device, except those for a moment."""
        return float(self.load.bytes(self.parts).sum())

    @cached_property
    def moment(self) -> float:
        """Bytes for a moment: the largest gathered copy or recomputed segment."""
        return float(self.parts[:, MOMENT].max(initial=0.0))

    @property
    def needs(self) -> float:
        """All bytes of one device."""
        return self.bytes + self.moment

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
        super().__init__(f"needs {least.needs} bytes")
        self.least = least


@dataclass
class Relaxation:
    """Optimum of consecutive segments at a price of a byte, without a limit.

    `pins`: options of variables between segments that are decided already.
    """

    segments: list[Segment]
    load: Load
    pins: Mapping[str, int]
    _twists: dict[tuple[int, PartWeights], tuple[Twist, ...]] = field(default_factory=dict)

    def at(self, rates: Sequence[float] | float, cap: float = np.inf) -> tuple[Assignment, float]:
        """Return the best assignment at one price of a byte per segment, and the bound.

        `cap`: most bytes for a moment. The bound is of assignments within the cap; the assignment
        itself may exceed it.
        """
        each = [rates] * len(self.segments) if isinstance(rates, float) else list(rates)
        weights = [self.load.weights(rate, cap) for rate in each]
        best: Assignment | None = None
        bound = -np.inf
        for _ in range(TWIST_ROUNDS):
            lowered = self.lowered(weights)
            top = self.top(lowered)
            trial, twists = self._decoded(lowered, best_assignment(top.steps), max(each))
            bound = max(bound, top.bound)
            if best is None or _is_better(trial, best, cap):
                best = trial
            if not self._refine(weights, trial, twists):
                break
        assert best is not None, "no round ran"
        return best, bound

    def lowered(self, weights: Sequence[PartWeights]) -> list[LoweredSegment]:
        """Return the bound of every segment by its outer variables."""
        pairs = zip(self.segments, weights, strict=True)
        return [s.kind.lowered(w, self.twists(s, w)) for s, w in pairs]

    def twists(self, segment: Segment, weights: PartWeights) -> tuple[Twist, ...]:
        """Return the twists of a segment so far."""
        moment = TIE * weights.rate if np.isfinite(weights.cap) else 0.0
        return self._twists.get((id(segment.kind), weights), (Twist(1 - TIE, moment),))

    def top(self, lowered: Sequence[LoweredSegment]) -> Elimination:
        """Eliminate the variables between segments, in the order of their last segment."""
        tables: list[CostTable] = []
        last: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for i, (segment, inner) in enumerate(zip(self.segments, lowered, strict=True)):
            scope = tuple(segment.names[name] for name in inner.table.scope)
            tables.append(CostTable(scope, inner.table.costs))
            sizes.update(zip(scope, inner.table.costs.shape, strict=True))
            last.update(dict.fromkeys(scope, i))
        for name in self.pins.keys() & last.keys():
            costs = np.full(sizes[name], np.inf)
            costs[self.pins[name]] = 0.0
            tables.append(CostTable((name,), costs))
        return eliminate(tables, sorted(last, key=lambda name: last[name]))

    def _decoded(
        self, lowered: Sequence[LoweredSegment], values: Mapping[str, int], rate: float
    ) -> tuple[Assignment, list[Twist]]:
        decoded = [
            inner.decode({n: values[segment.names[n]] for n in inner.table.scope})
            for segment, inner in zip(self.segments, lowered, strict=True)
        ]
        parts = np.array([each for _, each, _ in decoded])
        assignment = Assignment(tuple(local for local, _, _ in decoded), parts, self.load, rate)
        return assignment, [twist for _, _, twist in decoded]

    # -- twists --------------------------------------------------------------------------------

    def _refine(
        self, weights: Sequence[PartWeights], assignment: Assignment, twists: Sequence[Twist]
    ) -> bool:
        """Add a twist to every kind of segment whose bound is not reached; True if one was."""
        is_changed = False
        places = {
            (id(s.kind), w): i for i, (s, w) in enumerate(zip(self.segments, weights, strict=True))
        }
        for key, i in places.items():
            current = self.twists(self.segments[i], weights[i])
            new = self._better(
                current, twists[i], assignment.parts[i], weights[i], assignment.local[i]
            )
            if new is not None and new not in current:
                self._twists[key] = (*current, new)
                is_changed = True
        return is_changed

    def _better(
        self,
        current: Sequence[Twist],
        twist: Twist,
        parts: np.ndarray,
        weights: PartWeights,
        values: Mapping[str, int],
    ) -> Twist | None:
        """Return a twist with a higher bound for an assignment, or None."""
        if values.get(RECOMPUTE) and parts[MOMENT] > weights.cap:
            prices = [weights.rate * price for price in MOMENT_PRICES]
            return next((Twist(twist.arithmetic, p) for p in prices if p > twist.moment), None)
        if not self.load.overlaps:
            return None
        arithmetic, hidden = self.load.windows(parts)
        shares = sorted({0.0, *(t.arithmetic for t in current)})
        place = shares.index(twist.arithmetic)
        if abs(arithmetic - hidden) <= EXACT_GAP * max(arithmetic, hidden):
            return None
        step = 1 if arithmetic > hidden else -1
        if not 0 <= place + step < len(shares):
            return None
        other = shares[place + step]
        is_tried = any(t.arithmetic == other for t in current)
        share = (other + twist.arithmetic) / 2 if is_tried else other
        is_fine = is_tried and abs(other - twist.arithmetic) < FINEST
        return None if is_fine else Twist(share, twist.moment)


def _is_better(trial: Assignment, best: Assignment, cap: float) -> bool:
    """Return True if `trial` is faster, or within the cap where `best` is not."""
    return trial.seconds < best.seconds or best.moment > cap >= trial.moment


def segment_steps(
    segment: Segment, index: int, lowered: LoweredSegment, twist: Twist
) -> list[EliminationStep]:
    """Return the steps that eliminate one segment by one twist, with names of the problem."""
    inner = lowered.kind.eliminate(lowered.weights, twist)
    steps = [_renamed(step, segment, index) for step in inner.steps]
    if lowered.kind.can_recompute:
        rest = _named(inner.rest, segment, index)
        axis = inner.rest.scope.index(RECOMPUTE)
        scope = tuple(n for i, n in enumerate(rest.scope) if i != axis)
        least = CostTable(scope, rest.costs.min(axis=axis))
        steps.append(EliminationStep(rest.scope[axis], (rest,), (least,)))
    return steps


def global_name(segment: Segment, index: int, name: str) -> str:
    """Return the variable of the problem for a local name of segment `index`."""
    return f"{RECOMPUTE} {index}" if name == RECOMPUTE else segment.names[name]


def local_values(segment: Segment, index: int, values: Mapping[str, int]) -> dict[str, int]:
    """Return the values of a segment's variables by local name."""
    pairs = ((local, global_name(segment, index, local)) for local in (RECOMPUTE, *segment.names))
    return {local: values[name] for local, name in pairs if name in values}


def _named(table: CostTable, segment: Segment, index: int) -> CostTable:
    return CostTable(tuple(global_name(segment, index, n) for n in table.scope), table.costs)


def _renamed(step: EliminationStep, segment: Segment, index: int) -> EliminationStep:
    return EliminationStep(
        global_name(segment, index, step.variable),
        tuple(_named(t, segment, index) for t in step.tables),
        tuple(_named(m, segment, index) for m in step.messages),
    )


def relaxation_of(
    problem: PlanningProblem,
    segments: Sequence[Segment] | None = None,
    load: Load | None = None,
    pins: Mapping[str, int] | None = None,
) -> Relaxation:
    """Return the relaxation of a problem, or of some of its segments."""
    overlaps = problem.setting.mesh.overlaps
    each = list(problem.segments if segments is None else segments)
    return Relaxation(each, load or Load(overlaps=overlaps), pins or {})
