"""Pruning rules for searches with several objectives, which Optuna's pruners do not support.

They compare the reports of trials at the same step: by the first objective, or by the hypervolume
that each trial adds to the front. Other objectives, such as bytes, are often known before training.

>>> rank_by_hypervolume([(0.9, -8.0), (0.8, -4.0), (0.7, -8.0)])
[1, 0, 2]
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Scores = tuple[float, ...]
"""Values of objectives, signed so that more is better; the first is the reported one."""
Reports = Mapping[int, Scores]
"""Reports of a trial: step -> scores."""
Rank = Callable[[Sequence[Scores]], list[int]]
"""Function that returns the place of each score, 0 the best."""
HALVING, HYPERBAND = 4, 3
"""Ratio `eta`: one of `eta` trials passes a rung, and the steps of rungs grow by `eta`."""
STARTUP = 5
"""Trials that must have reported before the median rule ends one."""


def rank_by_first(scores: Sequence[Scores]) -> list[int]:
    """Return places by the first objective alone; of equals the earlier is first."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i][0])
    return _places(order)


def rank_by_hypervolume(scores: Sequence[Scores]) -> list[int]:
    """Return places by fronts, and within a front by the volume that only one trial dominates.

    If the other objectives of some trial are unknown, the first objective decides.
    """
    if len({len(each) for each in scores}) > 1 or len(scores[0]) == 1:
        return rank_by_first(scores)
    columns = [(min(column), max(column)) for column in zip(*scores, strict=True)]
    # a little worse than the worst, so that the ends of a front count
    corner = tuple(low - 0.1 * ((high - low) or 1.0) for low, high in columns)
    rest, order = list(range(len(scores))), []
    while rest:
        front = [i for i in rest if not any(_dominates(scores[j], scores[i]) for j in rest)]
        own = {}
        for i in front:
            others = [scores[j] for j in front if j != i]
            own[i] = hypervolume([*others, scores[i]], corner) - hypervolume(others, corner)
        order += sorted(front, key=lambda i: -own[i])
        rest = [i for i in rest if i not in own]
    return _places(order)


def _places(order: Sequence[int]) -> list[int]:
    places = [0] * len(order)
    for place, number in enumerate(order):
        places[number] = place
    return places


def _dominates(one: Scores, other: Scores) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def hypervolume(points: Sequence[Scores], corner: Scores) -> float:
    """Return the volume between `corner` and the points, which are all above it.

    >>> hypervolume([(2.0, 1.0), (1.0, 2.0)], (0.0, 0.0))
    3.0
    """
    if not points:
        return 0.0
    if len(corner) == 1:
        return max(point[0] for point in points) - corner[0]
    volume, height = 0.0, corner[-1]
    for top in sorted({point[-1] for point in points}):
        above = [point[:-1] for point in points if point[-1] >= top]
        volume += (top - height) * hypervolume(above, corner[:-1])
        height = top
    return volume


@dataclass(frozen=True)
class RungRule:
    """Rule by which the best 1/`eta` of the trials at a rung continue, and the others end.

    `brackets`: the trial number selects a schedule, whose first rung comes earlier or later, so
    that trials that improve slowly have a chance. No trial ends at a rung with less than `eta`.
    """

    rank: Rank = rank_by_first
    eta: int = HYPERBAND
    brackets: bool = True

    def ends(self, number: int, step: int, own: Reports, others: Sequence[Reports]) -> bool:
        """Return True if trial `number`, which has just reported at `step`, ends there."""
        rung = self._rung_at_most(step)
        longest = max((max(reports, default=1) for reports in others), default=step)
        count = max(1, self._rung_at_most(longest)) if self.brackets else 1
        is_rung = step >= 1 and self.eta**rung == step
        if not is_rung or rung < zlib.crc32(str(number).encode()) % count:
            return False
        there = [own[step], *(reports[step] for reports in others if step in reports)]
        if len(there) < self.eta:
            return False
        return self.rank(there)[0] >= max(1, len(there) // self.eta)

    def _rung_at_most(self, step: int) -> int:
        """Return the number of the last rung up to `step`; rungs are at powers of `eta`."""
        return math.floor(math.log(step, self.eta) + 1e-9) if step >= 1 else 0


@dataclass(frozen=True)
class MedianRule:
    """Rule that ends a trial whose first objective is below the median at the same step."""

    def ends(self, number: int, step: int, own: Reports, others: Sequence[Reports]) -> bool:
        """Return True if trial `number`, which has just reported at `step`, ends there."""
        there = [reports[step][0] for reports in others if step in reports]
        return len(there) >= STARTUP and own[step][0] < statistics.median(there)


Rule = RungRule | MedianRule
RULES: Mapping[str, Rule] = {
    "median": MedianRule(),
    "hyperband": RungRule(),
    "successive_halving": RungRule(eta=HALVING, brackets=False),
    "hypervolume": RungRule(rank_by_hypervolume),
}
"""Rules for several objectives, by the name of the pruner."""
