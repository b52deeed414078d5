"""Layout of a directed graph in rows, with edges running down.

It has the four classic steps of a layered drawing, one function each:

1. `_orient`: turn the few edges that close a cycle, so that every edge can run down;
2. `_layer`: give each box a row, as high as its inputs allow and as near its users as possible;
3. `_order`: sort each row by the mean position of its neighbours until crossings stop falling;
4. `_place`: find x positions that keep edges straight and boxes apart.

An edge that spans several rows is a chain of *virtual* nodes, one per row, so that the sorting
leaves room for it. Nothing recurses, and the result is deterministic.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graph.drawing.errors import DrawError, suggest

# All lengths are in SVG user units (pixels at 100 %).
CHARACTER, LINE, PADDING_X, PADDING_Y = 7.3, 16.0, 12.0, 8.0
BOX_GAP, VIRTUAL_GAP, PORT_STEP = 28.0, 14.0, 18.0
ROW_GAP_LEAST, ROW_GAP_MOST, ROW_GAP_SLOPE = 34.0, 110.0, 0.08
MARGIN, LOOP = 24.0, 20.0
# Beyond this many virtual nodes the longest edges are drawn straight, behind the boxes.
VIRTUAL_BUDGET = 12_000
ORDER_SWEEPS, PLACE_SWEEPS, PATIENCE = 24, 16, 4
# Straightness matters most in the middle of a long edge: weight by the number of virtual ends.
EDGE_WEIGHT = (1.0, 2.0, 8.0)

Point = tuple[float, float]
Link = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """One node of the drawing: text lines, colour, hover text, and a link relative to it."""

    name: str
    lines: tuple[str, ...]
    fill: str = "#ffffff"
    tooltip: str = ""
    link: str = ""


@dataclass(frozen=True)
class Edge:
    """An arrow from one box to another, both by name."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Placed:
    """Centre and size of a box."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """A finished layout: one `Placed` per box and one point list per edge, in input order.

    A route has pairs of points: each pair is a vertical line through one row. Curves are only
    between rows, so no edge crosses a box.
    """

    boxes: tuple[Placed, ...]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layout(boxes: Sequence[Box], edges: Sequence[Edge]) -> Layout:
    """Return the positions of all boxes and edges; no two boxes overlap."""
    links = check_links(boxes, edges)
    down, order = _orient(len(boxes), links)
    rows = _layer(order, down)
    web = _Web([_text_size(box.lines) for box in boxes], rows, down)
    _order(web)
    _place(web)
    return _finish(web, links, down)


def check_links(boxes: Sequence[Box], edges: Sequence[Edge]) -> list[Link]:
    """Return the edges as pairs of box numbers; raise for repeated and unknown names."""
    number: dict[str, int] = {}
    for box in boxes:
        if box.name in number:
            raise DrawError(f"box '{box.name}' is given twice; names must be unique.")
        number[box.name] = len(number)
    for edge in edges:
        for end in (edge.source, edge.target):
            if end not in number:
                text = f"edge '{edge.source}' -> '{edge.target}': no box is called '{end}'."
                raise DrawError(f"{text} {suggest(end, number)}")
    return [(number[edge.source], number[edge.target]) for edge in edges]


def _text_size(lines: Sequence[str]) -> Point:
    widest = max((columns(line) for line in lines), default=0)
    return widest * CHARACTER + 2 * PADDING_X, max(1, len(lines)) * LINE + 2 * PADDING_Y


def columns(text: str) -> int:
    """Return the width in monospace columns; East Asian wide characters have two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _neighbours(count: int, links: Iterable[Link]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in links:
        below[source].append(target)
        above[target].append(source)
    return above, below


def _orient(count: int, links: Sequence[Link]) -> tuple[list[Link], list[int]]:
    """Return the links, turned to follow one order of the boxes, and that order.

    This is Kahn's algorithm; in a cycle it continues with the first box not yet placed.
    """
    above, below = _neighbours(count, ((s, t) for s, t in links if s != t))
    waiting = [len(sources) for sources in above]
    ready = deque(i for i in range(count) if waiting[i] == 0)
    rank = [-1] * count
    order: list[int] = []
    first_unplaced = 0
    while len(order) < count:
        while not ready:
            if rank[first_unplaced] < 0:
                ready.append(first_unplaced)
            first_unplaced += 1
        i = ready.popleft()
        if rank[i] >= 0:
            continue
        rank[i] = len(order)
        order.append(i)
        for target in below[i]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return [(s, t) if rank[s] <= rank[t] else (t, s) for s, t in links], order


def _layer(order: Sequence[int], links: Sequence[Link]) -> list[int]:
    """Return the row of each box: longest path from the top, then moved towards its users."""
    above, below = _neighbours(len(order), ((s, t) for s, t in links if s != t))
    row = [0] * len(order)
    for i in order:
        row[i] = max((row[source] + 1 for source in above[i]), default=0)
    for i in reversed(order):
        if len(below[i]) > len(above[i]):  # moving down shortens more edges than it stretches
            row[i] = min(row[target] for target in below[i]) - 1
    return row


class _Web:
    """Boxes and virtual nodes in one numbering; every link joins adjacent rows."""

    def __init__(self, sizes: Sequence[Point], row: Sequence[int], links: Sequence[Link]) -> None:
        self.box_count = len(sizes)
        self.width = [width for width, _ in sizes]
        self.height = [height for _, height in sizes]
        self.row = list(row)
        # Per link: its chain of node numbers, or None without virtual nodes.
        self.chains: list[list[int] | None] = [None] * len(links)
        self._make_chains(links)
        steps = [step for chain in self.chains if chain for step in pairwise(chain)]
        self.above, self.below = _neighbours(len(self.row), steps)
        self.x = [0.0] * len(self.row)
        self.rows: list[list[int]] = [[] for _ in range(max(self.row, default=-1) + 1)]
        for i in self._depth_first():
            self.rows[self.row[i]].append(i)

    def _make_chains(self, links: Sequence[Link]) -> None:
        def span(number: int) -> int:
            source, target = links[number]
            return self.row[target] - self.row[source]

        budget = VIRTUAL_BUDGET
        for number in sorted(range(len(links)), key=span):
            budget -= span(number)
            if span(number) > 0 and (budget >= 0 or span(number) == 1):
                self.chains[number] = self._chain(*links[number])

    def _chain(self, source: int, target: int) -> list[int]:
        rows = range(self.row[source] + 1, self.row[target])
        first = len(self.row)
        self.row.extend(rows)
        self.width.extend([0.0] * len(rows))
        self.height.extend([0.0] * len(rows))
        return [source, *range(first, first + len(rows)), target]

    def _depth_first(self) -> list[int]:
        """Return all nodes by branches: a good start for the sorting."""
        order: dict[int, None] = {}
        for root in sorted(range(len(self.row)), key=lambda i: self.row[i]):
            stack = [root]
            while stack:
                i = stack.pop()
                if i not in order:
                    order[i] = None
                    stack.extend(reversed(self.below[i]))
        return list(order)

    def is_virtual(self, i: int) -> bool:
        """Return True if node `i` is a point of a long edge and no box."""
        return i >= self.box_count


def _order(web: _Web) -> None:
    """Sort rows by barycentre, down and up in turn; use the order with fewest crossings."""
    best, fewest, stale = [list(row) for row in web.rows], _crossings(web), 0
    for sweep in range(ORDER_SWEEPS):
        if fewest == 0 or stale >= PATIENCE:
            break
        is_down = sweep % 2 == 0
        _sort_rows(web, is_down=is_down)
        crossings = _crossings(web)
        stale += 1
        if crossings < fewest:
            best, fewest, stale = [list(row) for row in web.rows], crossings, 0
    web.rows = best


def _sort_rows(web: _Web, *, is_down: bool) -> None:
    """Sort each row by the mean slot of its neighbours in the row just sorted."""
    near = web.above if is_down else web.below
    slot = _slots(web.rows)
    for row in web.rows if is_down else reversed(web.rows):
        middle = {i: sum(slot[j] for j in near[i]) / len(near[i]) for i in row if near[i]}
        row.sort(key=lambda i: middle.get(i, slot[i]))
        for position, i in enumerate(row):
            slot[i] = position


def _slots(rows: Sequence[Sequence[int]]) -> dict[int, int]:
    return {i: position for row in rows for position, i in enumerate(row)}


def _crossings(web: _Web) -> int:
    """Return the number of crossings: inversions between the orders of adjacent rows."""
    slot, total = _slots(web.rows), 0
    for row in web.rows:
        passed: list[int] = []
        for i in row:
            targets = sorted(slot[j] for j in web.below[i])
            total += sum(len(passed) - bisect_right(passed, target) for target in targets)
            for target in targets:
                insort(passed, target)
    return total


def _place(web: _Web) -> None:
    """Set the x of every node near its neighbours, row by row, with order and gaps fixed."""
    for row in web.rows:
        _settle(web, row, [0.0] * len(row), [1.0] * len(row))
    everywhere = [up + down for up, down in zip(web.above, web.below, strict=True)]
    for sweep in range(PLACE_SWEEPS):
        is_down = sweep % 2 == 0
        is_last = sweep >= PLACE_SWEEPS - 4
        near = everywhere if is_last else web.above if is_down else web.below
        for row in web.rows if is_down else reversed(web.rows):
            _pull(web, row, near)
    _straighten(web)


def _straighten(web: _Web) -> None:
    """Give virtual nodes of an edge one x if their neighbours in the rows leave room."""
    place = {i: (row, at) for row in web.rows for at, i in enumerate(row) if web.is_virtual(i)}
    for chain in web.chains:
        run: list[int] = []
        low, high = -math.inf, math.inf
        for i in (chain or [])[1:-1]:
            least, most = _room(web, *place[i])
            if max(low, least) > min(high, most):
                _align(web, run, low, high)
                run, low, high = [], -math.inf, math.inf
            run.append(i)
            low, high = max(low, least), min(high, most)
        _align(web, run, low, high)


def _room(web: _Web, row: Sequence[int], at: int) -> Point:
    """Return the range in which the virtual node at a place of a row can move."""
    low, high = -math.inf, math.inf
    if at > 0:
        low = web.x[row[at - 1]] + web.width[row[at - 1]] / 2 + VIRTUAL_GAP
    if at + 1 < len(row):
        high = web.x[row[at + 1]] - web.width[row[at + 1]] / 2 - VIRTUAL_GAP
    return low, high


def _align(web: _Web, run: Sequence[int], low: float, high: float) -> None:
    middle = sum(web.x[i] for i in run) / max(1, len(run))
    for i in run:
        web.x[i] = min(max(middle, low), high)


def _pull(web: _Web, row: Sequence[int], near: Sequence[Sequence[int]]) -> None:
    wishes, weights = [], []
    for i in row:
        pulls = [(EDGE_WEIGHT[web.is_virtual(i) + web.is_virtual(j)], web.x[j]) for j in near[i]]
        weight = sum(pull for pull, _ in pulls)
        wishes.append(sum(pull * x for pull, x in pulls) / weight if pulls else web.x[i])
        weights.append(weight or 0.1)
    _settle(web, row, wishes, weights)


def _settle(
    web: _Web, row: Sequence[int], wishes: Sequence[float], weights: Sequence[float]
) -> None:
    """Set the x positions nearest to `wishes` (weighted least squares) that keep the gaps of a row.

    Relative to the tightest packing, positions must not decrease. This is isotonic regression:
    neighbours that would pass each other share their mean.
    """
    packed = _packed(web, row)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for wish, weight, start in zip(wishes, weights, packed, strict=True):
        mean, members = wish - start, 1
        while pools and pools[-1][0] >= mean:
            other, other_weight, other_members = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, members = weight + other_weight, members + other_members
        pools.append((mean, weight, members))
    shifts = [mean for mean, _, members in pools for _ in range(members)]
    for i, start, shift in zip(row, packed, shifts, strict=True):
        web.x[i] = start + shift


def _packed(web: _Web, row: Sequence[int]) -> list[float]:
    """Return the centres of a row packed as tightly as the gaps allow, the first at zero."""
    centres = [0.0] * min(1, len(row))
    for left, right in pairwise(row):
        gap = VIRTUAL_GAP if web.is_virtual(left) or web.is_virtual(right) else BOX_GAP
        centres.append(centres[-1] + (web.width[left] + web.width[right]) / 2 + gap)
    return centres


def _finish(web: _Web, links: Sequence[Link], down: Sequence[Link]) -> Layout:
    """Convert rows to y positions and ports to edge ends, in positive coordinates."""
    left = min((x - w / 2 for x, w in zip(web.x, web.width, strict=True)), default=0.0) - MARGIN
    web.x = [x - left for x in web.x]
    bands = _bands(web)
    boxes = tuple(
        Placed(web.x[i], sum(bands[web.row[i]]) / 2, web.width[i], web.height[i])
        for i in range(web.box_count)
    )
    ports = _Ports(web, down)
    routes = []
    for number, (link, turned) in enumerate(zip(links, down, strict=True)):
        points = _route(web, bands, boxes, ports, number, turned)
        routes.append(tuple(points if link == turned else reversed(points)))
    right = max((x + w / 2 for x, w in zip(web.x, web.width, strict=True)), default=0.0)
    bottom = bands[-1][1] if bands else 0.0
    return Layout(boxes, tuple(routes), right + MARGIN, bottom + MARGIN)


def _bands(web: _Web) -> list[Point]:
    """Return top and bottom of each row; a gap grows with the sideways travel of its edges."""
    bands: list[Point] = []
    top = MARGIN
    for row in web.rows:
        height = max(web.height[i] for i in row)
        bands.append((top, top + height))
        travel = max((abs(web.x[i] - web.x[j]) for i in row for j in web.below[i]), default=0.0)
        top += height + min(ROW_GAP_MOST, ROW_GAP_LEAST + ROW_GAP_SLOPE * travel)
    return bands


class _Ports:
    """Points where links leave and enter boxes, spread over the side in the order of ends."""

    def __init__(self, web: _Web, links: Sequence[Link]) -> None:
        self.leave = self._spread(web, links, is_leaving=True)
        self.enter = self._spread(web, links, is_leaving=False)

    @staticmethod
    def _spread(web: _Web, links: Sequence[Link], *, is_leaving: bool) -> dict[int, float]:
        at_box: dict[int, list[tuple[float, int]]] = {}
        for number, (source, target) in enumerate(links):
            chain = web.chains[number] or [source, target]
            box, next_one = (source, chain[1]) if is_leaving else (target, chain[-2])
            at_box.setdefault(box, []).append((web.x[next_one], number))
        ports = {}
        for box, ends in at_box.items():
            step = min(PORT_STEP, 0.8 * web.width[box] / len(ends))
            first = web.x[box] - step * (len(ends) - 1) / 2
            for position, (_, number) in enumerate(sorted(ends)):
                ports[number] = first + step * position
        return ports


def _route(
    web: _Web,
    bands: Sequence[Point],
    boxes: Sequence[Placed],
    ports: _Ports,
    number: int,
    link: Link,
) -> list[Point]:
    """Return the points of one edge, downwards, with a vertical line per row, or of a loop."""
    source, target = link
    start, end = boxes[source], boxes[target]
    if source == target:
        side, out = start.x + start.width / 2, start.x + start.width / 2 + LOOP
        return [(side, start.y - 6), (out, start.y - 6), (out, start.y + 6), (side, start.y + 6)]
    leave, enter = ports.leave[number], ports.enter[number]
    chain = web.chains[number] or ()
    through = [(web.x[i], y) for i in chain[1:-1] for y in bands[web.row[i]]]
    return [
        (leave, start.y + start.height / 2),
        (leave, bands[web.row[source]][1]),
        *through,
        (enter, bands[web.row[target]][0]),
        (enter, end.y - end.height / 2),
    ]
