"""Products with constants as networks of shifted additions with common subexpressions.

Each weight is written in canonical signed digits: few digits, no two of them adjacent. A row of a
matrix is then a sum of shifted inputs. The most frequent pair of terms, in any row and at any
shift, becomes a node that replaces its pairs, until no pair occurs twice. The remaining terms of
each row are added, the shallowest first.

>>> signed_digits(7)  # 8 - 1
[(0, -1), (3, 1)]
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from chop.hw.arith.golden import Ints, Span

Term = tuple[int, int]
"""A node and the shift that it is added with."""
Pair = tuple[int, int, int, int]
"""Two nodes, the shift of the second against the first, and the product of their signs."""


def signed_digits(number: int) -> list[tuple[int, int]]:
    """Return the places and signs of the canonical signed digits of `number`."""
    digits, place = [], 0
    while number:
        if number % 2:
            sign = 2 - number % 4
            digits.append((place, sign))
            number -= sign
        number, place = number // 2, place + 1
    return digits


@dataclass(frozen=True)
class Adder:
    """left + sign * (right << shift), of two earlier nodes."""

    left: int
    right: int
    shift: int
    sign: int


@dataclass(frozen=True)
class Result:
    """A row of the product: sign * (node << shift); `node` is -1 for a row of zeros."""

    node: int
    shift: int
    sign: int


@dataclass
class Network:
    """Inputs 0 … inputs - 1, then `nodes`, each of earlier nodes; `results` are the rows."""

    inputs: int
    nodes: list[Adder] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    numbers: dict[Pair, int] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    """Additions on the longest way to each node."""

    def __post_init__(self) -> None:
        self.levels = [0] * self.inputs

    def node(self, pair: Pair) -> int:
        """Return the number of the node that adds `pair`; make it if there is none."""
        if pair not in self.numbers:
            left, right, shift, sign = pair
            self.numbers[pair] = self.inputs + len(self.nodes)
            self.nodes.append(Adder(left, right, shift, sign))
            self.levels.append(1 + max(self.levels[left], self.levels[right]))
        return self.numbers[pair]

    def coefficients(self) -> list[np.ndarray]:
        """Return each node as a sum of inputs, in Python's integers."""
        rows = list(np.eye(self.inputs, dtype=object))
        for n in self.nodes:
            rows.append(rows[n.left] + n.sign * (rows[n.right] << n.shift))
        return rows

    def spans(self, low: int, high: int) -> list[Span]:
        """Return the range of each node for inputs from `low` to `high`."""
        spans = []
        for row in self.coefficients():
            corners = [sorted((int(c) * low, int(c) * high)) for c in row if c]
            spans.append(Span(sum(c[0] for c in corners), sum(c[1] for c in corners), 0))
        return spans


def build(matrix: Ints) -> Network:
    """Return the network of a matrix (rows, inputs)."""
    network = Network(matrix.shape[1])
    rows = [
        {(k, place): sign for k, w in enumerate(row) for place, sign in signed_digits(int(w))}
        for row in matrix
    ]
    _share(rows, network)
    network.results = [_add_up(row, network) for row in rows]
    return network


def pair_of(a: tuple[Term, int], b: tuple[Term, int]) -> Pair:
    """Return the pair of two terms, the one with the smaller shift first."""
    ((m, s), g), ((n, t), h) = sorted((a, b), key=lambda term: (term[0][1], term[0][0]))
    return m, n, t - s, g * h


def _share(rows: list[dict[Term, int]], network: Network) -> None:
    """Replace pairs that occur more than once by nodes, the most frequent first."""
    counts: Counter[Pair] = Counter()
    places: dict[Pair, set[int]] = {}
    for number, row in enumerate(rows):
        for a, b in combinations(row.items(), 2):
            _count(pair_of(a, b), number, counts, places)
    queue = [(_rank(pair, n, network), pair) for pair, n in counts.items() if n > 1]
    heapq.heapify(queue)
    while queue:
        rank, pair = heapq.heappop(queue)
        if counts[pair] < 2:
            continue
        if rank != _rank(pair, counts[pair], network):
            heapq.heappush(queue, (_rank(pair, counts[pair], network), pair))
            continue
        changed: set[Pair] = set()
        matches = [(n, at) for n in places[pair] for at in _matches(rows[n], pair)]
        if len(matches) < 2:  # they overlap
            counts[pair] = 0
            continue
        node = network.node(pair)
        for number, (first, second) in matches:
            changed |= _replace(rows[number], number, (first, second), node, counts, places)
        for each in changed:
            if counts[each] > 1:
                heapq.heappush(queue, (_rank(each, counts[each], network), each))


def _rank(pair: Pair, count: int, network: Network) -> tuple[int, int, int]:
    """Return a sort key: frequent pairs first, then shallow ones, then narrow ones."""
    return -count, max(network.levels[pair[0]], network.levels[pair[1]]), pair[2]


def _count(pair: Pair, number: int, counts: Counter[Pair], places: dict[Pair, set[int]]) -> None:
    counts[pair] += 1
    places.setdefault(pair, set()).add(number)


def _matches(row: dict[Term, int], pair: Pair) -> Iterator[tuple[Term, Term]]:
    """Yield the occurrences of a pair in a row; no term is used twice."""
    left, right, shift, sign = pair
    used: set[Term] = set()
    for term in sorted(row):
        other = (right, term[1] + shift)
        if term[0] != left or other not in row or {term, other} & used or term == other:
            continue
        if row[term] * row[other] == sign:
            used |= {term, other}
            yield term, other


def _replace(
    row: dict[Term, int],
    number: int,
    terms: tuple[Term, Term],
    node: int,
    counts: Counter[Pair],
    places: dict[Pair, set[int]],
) -> set[Pair]:
    """Replace two terms by a node; return the pairs that became more frequent."""
    sign = row[terms[0]]
    for term in terms:
        old = (term, row.pop(term))
        for other in row.items():
            counts[pair_of(old, other)] -= 1
    new = ((node, terms[0][1]), sign)
    changed = set()
    for other in row.items():
        pair = pair_of(new, other)
        _count(pair, number, counts, places)
        changed.add(pair)
    row[new[0]] = sign
    return changed


def _add_up(row: dict[Term, int], network: Network) -> Result:
    if not row:
        return Result(-1, 0, 1)
    heap = [(network.levels[node], shift, node, sign) for (node, shift), sign in row.items()]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, s, m, g), (_, t, n, h) = heapq.heappop(heap), heapq.heappop(heap)
        node = network.node(pair_of(((m, s), g), ((n, t), h)))
        low, _, sign = min((s, m, g), (t, n, h), key=lambda term: term[:2])
        heapq.heappush(heap, (network.levels[node], low, node, sign))
    _, shift, node, sign = heap[0]
    return Result(node, shift, sign)
