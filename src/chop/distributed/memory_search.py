"""Search for the best prices of memory, and for the fastest assignment that fits.

Memory has two parts: a sum (parameters, states, activations) and a maximum (what is alive for a
moment). The range of the maximum is divided into intervals. An assignment with a maximum in (a, b]
has at most M − a bytes in the sum, so each interval has a bound of its own, by secants over the
price of a byte. The interval with the lowest bound is divided until the gap is closed.

Assignments come from the prices tried, from mixtures of solutions of equal segments
(`chop.distributed.mixing`), and for small problems from all assignments by rising regret.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chop.distributed.domains import MOMENT
from chop.distributed.elimination import assignments
from chop.distributed.mixing import MixGroup, mixed
from chop.distributed.optimum import (
    TIE,
    TIE_RATE,
    Assignment,
    DoesNotFitError,
    Load,
    Optimum,
    Relaxation,
    local_values,
    relaxation_of,
    segment_steps,
)
from chop.distributed.problem import RECOMPUTE, PlanningProblem, Segment, Twist

SECANTS = 24
"""Most prices of memory that are tried in an interval; each removes a corner of a convex hull."""
SLACK = 1e-4
"""Relative distance to the best price at which an interval is solved well enough."""
SPLITS = 14
"""Most divisions of an interval."""
GOAL = 1e-3
"""Relative gap at which a large problem is solved well enough."""
SMALL_PROBLEM = 150
"""Most variables of a problem whose assignments are enumerated."""
MAX_PARTIAL = 20_000
"""Most partial assignments that the enumeration visits."""
MIX_RATES = tuple(2.0**k for k in range(-4, 5))
"""Prices at which segments are solved for mixtures, relative to the best price."""
EPSILON = 1e-9
"""Relative difference up to which two bounds are equal."""
STEEP = 1e6
"""Price of all bytes, relative to the time, at which nothing but memory counts."""


class Solver:
    """Optimum over consecutive segments of a problem.

    `pins`: options of variables between segments that are decided already. `goal`: relative gap at
    which a large problem is solved well enough.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        segments: Sequence[Segment] | None = None,
        load: Load | None = None,
        pins: Mapping[str, int] | None = None,
        goal: float = GOAL,
    ) -> None:
        self.share = 1 - goal
        self.relaxation = relaxation_of(problem, segments, load, pins)

    def at(self, rates: Sequence[float] | float) -> tuple[Assignment, float]:
        """Return the best assignment at one price of a byte per segment, and the bound."""
        return self.relaxation.at(rates)

    def solve(self, memory: float | None = None) -> Optimum:
        """Return the optimum within `memory` bytes; raise `DoesNotFitError` if there is none."""
        fast, bound = self.at(TIE_RATE)
        search = _MemorySearch(self.relaxation, np.inf if memory is None else memory, self.share)
        search.see(fast)
        if memory is None or fast.needs <= memory:
            return search.enumerated(TIE_RATE, bound)
        return search.run()

    def solve_on(self, rates: Sequence[float], memory: float) -> Optimum:
        """Return the best assignment within `memory` among those at rising `rates`.

        Solvers that use the same rates share the eliminations of their segments.
        """
        low, high = -1, len(rates) - 1
        best, cost = self.relaxation.at(rates[high], memory)
        bound = cost - rates[high] * memory
        if best.needs > memory:
            raise DoesNotFitError(best)
        while high - low > 1:
            middle = (low + high) // 2
            trial, cost = self.relaxation.at(rates[middle], memory)
            bound = max(bound, cost - rates[middle] * memory)
            if trial.needs <= memory:
                best, high = min(best, trial, key=lambda a: a.seconds), middle
            else:
                low = middle
        return Optimum(best, min(bound, best.seconds))


@dataclass
class _MemorySearch:
    """Assignments seen so far, and the best of them that fits."""

    relaxation: Relaxation
    memory: float
    share: float
    tried: list[Assignment] = field(default_factory=list)
    best: Assignment | None = None
    mixes: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)
    rate: float = TIE_RATE

    @property
    def seconds(self) -> float:
        """Time of the best assignment that fits."""
        return np.inf if self.best is None else self.best.seconds

    @property
    def goal(self) -> float:
        """Bound at which an assignment is good enough."""
        return self.seconds * self.share

    def see(self, trial: Assignment) -> None:
        """Keep an assignment."""
        self.tried.append(trial)
        if trial.needs <= self.memory and trial.seconds < self.seconds:
            self.best = trial

    def run(self) -> Optimum:
        """Return the optimum."""
        heap = [self._interval(0.0, self.memory)]
        for _ in range(SPLITS):
            bound, low, high, place = heap[0]
            if bound >= self.goal:
                break
            heapq.heappop(heap)
            for ends in ((low, place), (place, high)):
                heapq.heappush(heap, self._interval(*ends))
        return self.enumerated(self.rate, min(heap)[0])

    # -- bounds --------------------------------------------------------------------------------

    def _interval(self, low: float, high: float) -> tuple[float, float, float, float]:
        """Return the bound of assignments with a maximum in (low, high], the ends, and a division.

        The division is just below the maximum of an assignment at the bound: such assignments then
        have less memory for the sum.
        """
        bound, pair = self._bound(low, high)
        peaks = [
            a.moment * (1 - TIE) for a in pair if low < a.moment * (1 - TIE) < high * (1 - TIE)
        ]
        return bound, low, high, max(peaks, default=(low + high) / 2)

    def _bound(self, low: float, high: float) -> tuple[float, list[Assignment]]:
        """Return the bound of an interval, and the assignments at the best price."""
        target = self.memory - low
        points = [a for a in self.tried if a.moment <= high]
        bound = 0.0
        trials: list[Assignment] = []
        for rate in (TIE_RATE, self._steep()):
            is_dear = rate == TIE_RATE
            if any((a.bytes > target) == is_dear for a in points):
                continue
            trial, cost = self._at(rate, high)
            points.append(trial)
            bound, trials = max(bound, cost - rate * target), [*trials, trial]
            if (trial.bytes > target) != is_dear:  # no price is needed, or none is enough
                return bound, [trial]
        for _ in range(SECANTS):
            dear, cheap, corner = _corner(points, target)
            rate = (cheap.seconds - dear.seconds) / (dear.bytes - cheap.bytes)
            if rate <= 0:
                break
            trial, cost = self._at(rate, high)
            bound = max(bound, cost - rate * target)
            points.append(trial)
            self.rate = rate if low == 0.0 and high == self.memory else self.rate
            # the line through both is on the convex hull, or the interval has nothing better
            if cost - rate * target >= corner * (1 - SLACK) or bound >= self.goal:
                break
        for each in (cheap, dear):
            self._mix(each)
        return bound, [dear, cheap]

    def _at(self, rate: float, cap: float) -> tuple[Assignment, float]:
        trial, cost = self.relaxation.at(rate, cap)
        self.see(trial)
        return trial, cost

    def _steep(self) -> float:
        fast = self.tried[0]
        return STEEP * fast.seconds / max(fast.bytes, 1.0)

    # -- mixtures ------------------------------------------------------------------------------

    def _mix(self, frame: Assignment) -> None:
        """Try the best mixture of solutions with the outer variables of `frame`."""
        segments = self.relaxation.segments
        outers = [
            {name: local[name] for name in segment.kind.keep if name in local}
            for segment, local in zip(segments, frame.local, strict=True)
        ]
        key = tuple(tuple(outer.values()) for outer in outers)
        if key in self.mixes or self.rate == TIE_RATE:
            return
        self.mixes.add(key)
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for i, segment in enumerate(segments):
            groups.setdefault((id(segment.kind), key[i]), []).append(i)
        solutions = [
            self._solutions(segments[each[0]], outers[each[0]]) for each in groups.values()
        ]
        load = self.relaxation.load
        pairs = list(zip(groups.values(), solutions, strict=True))
        tables = [MixGroup(len(each), _columns(trials, load)) for each, trials in pairs]
        counts = mixed(tables, self.memory)
        if counts is None:
            return
        chosen: dict[int, tuple[dict[str, int], np.ndarray]] = {}
        for (each, trials), number in zip(pairs, counts, strict=True):
            picks = np.repeat(np.arange(len(trials)), number)
            chosen |= {i: trials[pick] for i, pick in zip(each, picks, strict=True)}
        ordered = [chosen[i] for i in range(len(segments))]
        local = tuple(values for values, _ in ordered)
        self.see(Assignment(local, np.array([parts for _, parts in ordered]), load, self.rate))

    def _solutions(
        self, segment: Segment, outer: Mapping[str, int]
    ) -> list[tuple[dict[str, int], np.ndarray]]:
        """Return the solutions of a segment at several prices, stored and recomputed."""
        kind = segment.kind
        solutions: dict[bytes, tuple[dict[str, int], np.ndarray]] = {}
        for factor in MIX_RATES:
            weights = self.relaxation.load.weights(self.rate * factor, self.memory)
            for twist in self.relaxation.twists(segment, weights):
                for again in (0, 1) if kind.can_recompute else (None,):
                    fixed = dict(outer) if again is None else {**outer, RECOMPUTE: again}
                    values, parts = kind.decode(weights, twist, fixed)
                    solutions[parts.tobytes()] = values, parts
        return list(solutions.values())

    # -- small problems ------------------------------------------------------------------------

    def enumerated(self, rate: float, bound: float) -> Optimum:
        """Close the gap of a small problem: visit assignments until none can be better.

        Raise `DoesNotFitError` if nothing fits.
        """
        count = sum(len(segment.names) for segment in self.relaxation.segments)
        if count <= SMALL_PROBLEM:
            for twists in self._twists(rate):
                if bound < self.seconds * (1 - EPSILON):
                    bound = self._visit(rate, twists, bound)
        if self.best is None:
            raise DoesNotFitError(min(self.tried, key=lambda a: a.needs))
        return Optimum(self.best, min(bound, self.seconds))

    def _twists(self, rate: float) -> list[list[Twist]]:
        """Return the twists of every segment, one list per enumeration."""
        weights = self.relaxation.load.weights(rate, self.memory)
        each = [self.relaxation.twists(s, weights) for s in self.relaxation.segments]
        most = max(len(twists) for twists in each)
        return [[twists[min(k, len(twists) - 1)] for twists in each] for k in range(most)]

    def _visit(self, rate: float, twists: Sequence[Twist], bound: float) -> float:
        """Visit assignments by rising regret for fixed twists; return the bound."""
        segments = self.relaxation.segments
        weights = self.relaxation.load.weights(rate, self.memory)
        pairs = list(zip(segments, twists, strict=True))
        lowered = [segment.kind.lowered(weights, (twist,)) for segment, twist in pairs]
        top = self.relaxation.top(lowered)
        start = top.bound - (rate * self.memory if np.isfinite(self.memory) else 0.0)
        steps = [
            step
            for i, (segment, twist) in enumerate(pairs)
            for step in segment_steps(segment, i, lowered[i], twist)
        ]
        for regret, values in assignments(
            steps + list(top.steps), MAX_PARTIAL, self.seconds - start
        ):
            bound = max(bound, min(start + regret, self.seconds))
            if start + regret >= self.seconds or values is None:
                break
            self.see(self._from_values(values))
        return bound

    def _from_values(self, values: Mapping[str, int]) -> Assignment:
        segments = self.relaxation.segments
        local = tuple(local_values(s, i, values) for i, s in enumerate(segments))
        parts = [s.kind.parts(v) for s, v in zip(segments, local, strict=True)]
        return Assignment(local, np.array(parts), self.relaxation.load)


def _corner(points: Sequence[Assignment], target: float) -> tuple[Assignment, Assignment, float]:
    """Return the edge of the lower convex hull above `target` bytes, and its time there."""
    dear = [a for a in points if a.bytes > target]
    cheap = [a for a in points if a.bytes <= target]
    times = np.array([[a.seconds, a.bytes] for a in dear])[:, None]
    others = np.array([[a.seconds, a.bytes] for a in cheap])[None]
    rates = (others[..., 0] - times[..., 0]) / (times[..., 1] - others[..., 1])
    corners = others[..., 0] - rates * (target - others[..., 1])
    row, column = np.unravel_index(corners.argmin(), corners.shape)
    return dear[row], cheap[column], float(corners[row, column])


def _columns(trials: Sequence[tuple[Mapping[str, int], np.ndarray]], load: Load) -> np.ndarray:
    """Return seconds, bytes and bytes for a moment of each solution."""
    parts = np.array([each for _, each in trials])
    return np.stack([load.seconds(parts), load.bytes(parts), parts[:, MOMENT]], axis=1)
