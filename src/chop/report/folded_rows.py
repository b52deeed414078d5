"""A tall layout wrapped into columns, as a newspaper wraps its text, so that it fits a screen."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

from graph.drawing import Layout

ASPECT = 1.7
"""Width over height that is aimed at."""
TALL = 1.6
"""Height over width from which a layout is wrapped."""
GUTTER, MARGIN = 110.0, 24.0
LEAST_ROWS = 10
"""Rows of a column, at least."""
Point = tuple[float, float]


def wrapped(found: Layout, links: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Boxes and routes of `found` in columns; `far` lists the routes from one column to another.

    Columns end where the fewest edges cross. An edge between columns keeps its ends alone.
    """
    rows = sorted({box.y for box in found.boxes})
    row = [bisect.bisect_left(rows, box.y) for box in found.boxes]
    cuts = _cuts(found, row, links, len(rows))
    column = [bisect.bisect_right(cuts, r) for r in row]
    far = [i for i, (s, t) in enumerate(links) if column[s] != column[t]]
    shifts, size = _shifts(found, column, links, len(cuts) + 1)

    def move(point: Point, of: int) -> Point:
        (dx, dy) = shifts[of]
        return point[0] + dx, point[1] + dy

    boxes = [
        (*move((b.x, b.y), c), b.width, b.height) for b, c in zip(found.boxes, column, strict=True)
    ]
    routes: list[list[Point]] = []
    for route, (source, target) in zip(found.routes, links, strict=True):
        start, end = column[source], column[target]
        kept = route if start == end else (route[0], route[-1])
        routes.append([move(kept[0], start), *(move(p, end) for p in kept[1:])])
    return {"boxes": boxes, "routes": routes, "far": far, "width": size[0], "height": size[1]}


def _cuts(
    found: Layout, row: Sequence[int], links: Sequence[tuple[int, int]], count: int
) -> list[int]:
    """The rows at which columns begin, but the first."""
    columns = min(_column_count(found, row), count // LEAST_ROWS)
    if columns < 2:
        return []
    crossing = _crossing(row, links, count)
    slack = max(1, count // columns // 3)
    wanted = [round(k * count / columns) for k in range(1, columns)]
    return sorted({_quietest(crossing, ideal, slack) for ideal in wanted})


def _quietest(crossing: Sequence[int], ideal: int, slack: int) -> int:
    """The row near `ideal` that the fewest edges cross, the nearest of them."""
    near = range(max(1, ideal - slack), min(len(crossing) - 1, ideal + slack + 1))
    return min(near, key=lambda at: (crossing[at], abs(at - ideal)))


def _column_count(found: Layout, row: Sequence[int]) -> int:
    extents: dict[int, tuple[float, float]] = {}
    for box, r in zip(found.boxes, row, strict=True):
        low, high = extents.get(r, (math.inf, -math.inf))
        extents[r] = min(low, box.x - box.width / 2), max(high, box.x + box.width / 2)
    widths = sorted(high - low for low, high in extents.values())
    if not widths or found.height < TALL * found.width:
        return 1
    typical = widths[int(0.9 * (len(widths) - 1))] + GUTTER
    return max(1, round(math.sqrt(ASPECT * found.height / typical)))


def _crossing(row: Sequence[int], links: Sequence[tuple[int, int]], count: int) -> list[int]:
    """How many edges go from above each row to it or below."""
    steps = [0] * (count + 1)
    for source, target in links:
        low, high = sorted((row[source], row[target]))
        steps[low + 1] += 1
        steps[high + 1 if high + 1 <= count else count] -= 1
    totals, running = [], 0
    for step in steps:
        running += step
        totals.append(running)
    return totals


def _shifts(
    found: Layout, column: Sequence[int], links: Sequence[tuple[int, int]], count: int
) -> tuple[list[Point], Point]:
    """How far each column moves, and the size of all of them side by side."""
    points: list[list[Point]] = [[] for _ in range(count)]
    for box, c in zip(found.boxes, column, strict=True):
        points[c] += [
            (box.x - box.width / 2, box.y - box.height / 2),
            (box.x + box.width / 2, box.y + box.height / 2),
        ]
    for route, (source, target) in zip(found.routes, links, strict=True):
        if column[source] == column[target]:
            points[column[source]] += route
    shifts, x, bottom = [], MARGIN, 0.0
    for own in (column_points or [(0.0, 0.0)] for column_points in points):
        left, top = (min(p[k] for p in own) for k in (0, 1))
        shifts.append((x - left, MARGIN - top))
        x += max(p[0] for p in own) - left + GUTTER
        bottom = max(bottom, max(p[1] for p in own) - top)
    return shifts, (x - GUTTER + MARGIN, bottom + 2 * MARGIN)
