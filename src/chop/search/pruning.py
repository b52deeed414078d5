"""Which trials of a search with several objectives are not worth finishing.

Optuna's pruners know one objective. These compare what trials reported at the same step: by the
first objective, or by what each adds to the volume that the front of all of them dominates. The
other objectives of a trial, such as its bytes, are often known before it is trained.

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
"""Values of objectives, turned so that more is better; the first is what was reported."""
Reports = Mapping[int, Scores]
"""What a trial reported: step -> scores."""
Rank = Callable[[Sequence[Scores]], list[int]]
"""The place of each of several scores, 0 the best."""
HALVING, HYPERBAND = 4, 3
"""Of so many trials at a rung, one goes on; rungs are so many times apart."""
STARTUP = 5
"""Trials that must have reported before one is held against their median."""


def rank_by_first(scores: Sequence[Scores]) -> list[int]:
    """Places by the first objective alone; of equals the earlier is before."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i][0])
    return _places(order)


def rank_by_hypervolume(scores: Sequence[Scores]) -> list[int]:
    """Places by fronts, and in a front by the volume that only this one dominates.

    Where objectives beside the first are not known of all, the first decides.
    """
    if len({len(each) for each in scores}) > 1 or len(scores[0]) == 1:
        return rank_by_first(scores)
    corner = tuple(_below(column) for column in zip(*scores, strict=True))
    rest, order = list(range(len(scores))), []
    while rest:
        front = [i for i in rest if not any(_beats(scores[j], scores[i]) for j in rest)]
        own = {i: _exclusive(i, front, scores, corner) for i in front}
        order += sorted(front, key=lambda i: -own[i])
        rest = [i for i in rest if i not in own]
    return _places(order)


def _places(order: Sequence[int]) -> list[int]:
    places = [0] * len(order)
    for place, number in enumerate(order):
        places[number] = place
    return places


def _below(column: Sequence[float]) -> float:
    """A bound a little worse than the worst, so that the ends of a front count."""
    return min(column) - 0.1 * ((max(column) - min(column)) or 1.0)


def _beats(one: Scores, other: Scores) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def _exclusive(
    number: int, front: Sequence[int], scores: Sequence[Scores], corner: Scores
) -> float:
    others = [scores[i] for i in front if i != number]
    return hypervolume([*others, scores[number]], corner) - hypervolume(others, corner)


def hypervolume(points: Sequence[Scores], corner: Scores) -> float:
    """The volume between `corner` and the points, which are all above it, by slices.

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
    """Of the trials that reached a rung, the best share goes on; the others end there.

    `brackets`: trials are dealt, by their number, to schedules whose first rung comes later and
    later, so that those that start slowly get their time, too. Fewer than `eta` trials at a rung
    are too few to choose from.
    """

    rank: Rank = rank_by_first
    eta: int = HYPERBAND
    brackets: bool = True

    def ends(self, number: int, step: int, own: Reports, others: Sequence[Reports]) -> bool:
        """Whether trial `number`, which has just reported at `step`, ends there."""
        rung = self._rung(step)
        longest = max((max(reports, default=1) for reports in others), default=step)
        count = max(1, self._rung_at_most(longest)) if self.brackets else 1
        if rung is None or rung < zlib.crc32(str(number).encode()) % count:
            return False
        there = [own[step], *(reports[step] for reports in others if step in reports)]
        if len(there) < self.eta:
            return False
        return self.rank(there)[0] >= max(1, len(there) // self.eta)

    def _rung(self, step: int) -> int | None:
        """The number of the rung at `step`: 1, eta, eta squared …; None between rungs."""
        number = self._rung_at_most(step)
        return number if step >= 1 and self.eta**number == step else None

    def _rung_at_most(self, step: int) -> int:
        return math.floor(math.log(step, self.eta) + 1e-9) if step >= 1 else 0


@dataclass(frozen=True)
class MedianRule:
    """A trial ends where it is worse, in the first objective, than half of the others were."""

    def ends(self, number: int, step: int, own: Reports, others: Sequence[Reports]) -> bool:
        """Whether trial `number`, which has just reported at `step`, ends there."""
        there = [reports[step][0] for reports in others if step in reports]
        return len(there) >= STARTUP and own[step][0] < statistics.median(there)


Rule = RungRule | MedianRule
RULES: Mapping[str, Rule] = {
    "median": MedianRule(),
    "hyperband": RungRule(),
    "successive_halving": RungRule(eta=HALVING, brackets=False),
    "hypervolume": RungRule(rank_by_hypervolume),
}
"""Pruner -> its rule where there are several objectives."""
