"""Wrapping of a tall layout into columns, so that it fits a screen."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any

from graph.drawing import Layout

ASPECT = 1.7
"""Target of width over height: the proportions of a screen."""
TALL = 1.6
"""Height over width above which a layout is wrapped."""
GUTTER, MARGIN = 110.0, 24.0
"""Space between columns and around the layout, in units of the layout."""
LEAST_ROWS = 10
"""Fewest rows of a column."""
Point = tuple[float, float]


def wrapped(tall: Layout, links: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return boxes and routes of `tall` in columns; `far` lists the routes between two columns.

    Columns end where the fewest edges cross. Of an edge between columns only the ends remain.
    """
    rows = sorted({box.y for box in tall.boxes})
    row = [bisect.bisect_left(rows, box.y) for box in tall.boxes]
    cuts = _cuts(tall, row, links, len(rows))
    column = [bisect.bisect_right(cuts, r) for r in row]
    far = [i for i, (s, t) in enumerate(links) if column[s] != column[t]]
    shifts, size = _shifts(tall, column, links, len(cuts) + 1)

    def move(point: Point, of: int) -> Point:
        return point[0] + shifts[of][0], point[1] + shifts[of][1]

    boxes = [
        (*move((b.x, b.y), c), b.width, b.height) for b, c in zip(tall.boxes, column, strict=True)
    ]
    routes: list[list[Point]] = []
    for route, (source, target) in zip(tall.routes, links, strict=True):
        start, end = column[source], column[target]
        points = route if start == end else (route[0], route[-1])
        routes.append([move(points[0], start), *(move(p, end) for p in points[1:])])
    return {"boxes": boxes, "routes": routes, "far": far, "width": size[0], "height": size[1]}


def _cuts(
    tall: Layout, row: Sequence[int], links: Sequence[tuple[int, int]], count: int
) -> list[int]:
    """Return the first rows of all columns except the first: near even, with few crossing edges."""
    columns = min(_column_count(tall, row), count // LEAST_ROWS)
    if columns < 2:
        return []
    crossing = _crossing(row, links, count)
    slack = max(1, count // columns // 3)
    cuts = set()
    for ideal in (round(k * count / columns) for k in range(1, columns)):
        near = range(max(1, ideal - slack), min(len(crossing) - 1, ideal + slack + 1))
        cuts.add(min((crossing[at], abs(at - ideal), at) for at in near)[2])
    return sorted(cuts)


def _column_count(tall: Layout, row: Sequence[int]) -> int:
    extents: dict[int, tuple[float, float]] = {}
    for box, r in zip(tall.boxes, row, strict=True):
        low, high = extents.get(r, (math.inf, -math.inf))
        extents[r] = min(low, box.x - box.width / 2), max(high, box.x + box.width / 2)
    widths = sorted(high - low for low, high in extents.values())
    if not widths or tall.height < TALL * tall.width:
        return 1
    typical = widths[int(0.9 * (len(widths) - 1))] + GUTTER  # nine of ten rows are narrower
    return max(1, round(math.sqrt(ASPECT * tall.height / typical)))


def _crossing(row: Sequence[int], links: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Return the number of edges that lead from above each row to it or below."""
    steps = [0] * (count + 1)
    for source, target in links:
        low, high = sorted((row[source], row[target]))
        steps[low + 1] += 1
        steps[min(high + 1, count)] -= 1
    return list(itertools.accumulate(steps))


def _shifts(
    tall: Layout, column: Sequence[int], links: Sequence[tuple[int, int]], count: int
) -> tuple[list[Point], Point]:
    """Return the distance that each column moves, and the size of all columns together."""
    points: list[list[Point]] = [[] for _ in range(count)]
    for box, c in zip(tall.boxes, column, strict=True):
        points[c] += [
            (box.x - box.width / 2, box.y - box.height / 2),
            (box.x + box.width / 2, box.y + box.height / 2),
        ]
    for route, (source, target) in zip(tall.routes, links, strict=True):
        if column[source] == column[target]:
            points[column[source]] += route
    shifts, x, bottom = [], MARGIN, 0.0
    for own in (column_points or [(0.0, 0.0)] for column_points in points):
        left, top = (min(p[k] for p in own) for k in (0, 1))
        shifts.append((x - left, MARGIN - top))
        x += max(p[0] for p in own) - left + GUTTER
        bottom = max(bottom, max(p[1] for p in own) - top)
    return shifts, (x - GUTTER + MARGIN, bottom + 2 * MARGIN)
