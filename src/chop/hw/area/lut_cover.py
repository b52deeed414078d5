"""LUTs of a small table: a graph of two-way choices, covered as the mapper covers it.

A table is a function of its address. Split by one address bit after the other, it is a graph of
choices in which equal and opposite parts exist once. Each LUT covers a part of the graph that few
signals lead into, and the cheapest cover is kept. No sum of amounts gives the logic that a smooth
function shares; this does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]
LutCut = frozenset[int]
"""Signals that lead into a LUT: places of choices, and below zero bits of the address."""
ROUNDS = 2
"""Rounds of covering; each weighs signals by their uses in the round before."""
CUTS = 5
"""Cheapest cuts of a choice that its readers try."""


@dataclass
class ChoiceGraph:
    """Choices by one address bit each; parts come before the choices that read them."""

    inputs: int
    """Inputs of a LUT: a function of as many bits is not split further."""
    places: dict[bytes, int] = field(default_factory=dict)
    nodes: list[LutCut | tuple[int, int | None, int | None]] = field(default_factory=list)
    """The address bits that a LUT reads; or the bit that selects, and both parts (None: a
    constant)."""

    def add(self, function: Bits) -> int | None:
        """Return the signal of a function of the address; an address bit is below zero."""
        half = len(function) // 2
        while half and (function[:half] == function[half:]).all():
            function, half = function[:half], half // 2
        if not half:
            return None
        function = function ^ function[0]  # the opposite takes the same LUTs
        key = function.tobytes()
        if key not in self.places:
            self.places[key] = self._place(function, half)
        return self.places[key]

    def _place(self, function: Bits, half: int) -> int:
        bit = half.bit_length() - 1
        node: LutCut | tuple[int, int | None, int | None]
        if bit < self.inputs:
            pairs = [function.reshape(-1, 2, 1 << b) for b in range(bit + 1)]
            node = frozenset(-1 - b for b, p in enumerate(pairs) if (p[:, 0] != p[:, 1]).any())
            is_bit = len(node) == 1
        else:
            node = (bit, self.add(function[:half]), self.add(function[half:]))
            is_bit = node[1:] == (None, None)
        if is_bit:
            return -1 - bit
        self.nodes.append(node)
        return len(self.nodes) - 1


def cover(graph: ChoiceGraph, outputs: list[int], areas: tuple[int, ...]) -> int:
    """Return the LUTs that drive `outputs`; `areas[n]`: LUTs of a function of n inputs."""
    uses = np.zeros(len(graph.nodes))
    parts = (part for node in graph.nodes if isinstance(node, tuple) for part in node[1:])
    for place in (*outputs, *parts):
        if place is not None and place >= 0:
            uses[place] += 1
    uses = np.maximum(uses, 1.0)
    counts = []
    for _ in range(ROUNDS):
        luts, used = _count(_cheapest(graph, uses, areas), outputs, areas)
        counts.append(luts)
        uses = np.maximum((uses + used) / 2, 1.0)
    return min(counts)


def _cheapest(
    graph: ChoiceGraph, uses: npt.NDArray[np.float64], areas: Sequence[int]
) -> list[LutCut]:
    """Return the cut of each choice whose LUT, with all LUTs behind it, is cheapest."""
    cuts: list[list[LutCut]] = []
    flow: list[float] = []
    for node, count in zip(graph.nodes, uses.tolist(), strict=True):
        costs = [
            (areas[len(cut)] + sum(flow[p] for p in cut if p >= 0), len(cut), sorted(cut))
            for cut in (_cuts(node, cuts) if isinstance(node, tuple) else {node})
            if len(cut) < len(areas)
        ]
        costs.sort()
        cuts.append([frozenset(cut) for _, _, cut in costs[:CUTS]])
        flow.append(costs[0][0] / count)
    return [best for best, *_ in cuts]


def _cuts(node: tuple[int, int | None, int | None], cuts: list[list[LutCut]]) -> set[LutCut]:
    """Return the cuts of a choice: the signals of its parts, or the cuts of those."""
    bit, *parts = node
    sides = [
        [frozenset[int]()] if p is None else [frozenset({p}), *(cuts[p] if p >= 0 else ())]
        for p in parts
    ]
    return {low | high | {-1 - bit} for low in sides[0] for high in sides[1]}


def _count(
    cuts: list[LutCut], outputs: list[int], areas: Sequence[int]
) -> tuple[int, npt.NDArray[np.float64]]:
    """Return the LUTs of the choices that `outputs` need, and the uses of each choice."""
    used = np.zeros(len(cuts))
    for output in outputs:
        used[output] += 1
    luts = 0
    for place in reversed(range(len(cuts))):
        if used[place]:
            luts += areas[len(cuts[place])]
            for part in cuts[place]:
                if part >= 0:
                    used[part] += 1
    return luts, used


def mapped_luts(columns: Bits, inputs: int, widest: int) -> tuple[int, int]:
    """Return the LUTs of one-bit tables, and of the set and reset signals behind them.

    A column that is constant in one half of the table is a table of the other half, and a register
    that the highest bit of the address sets or clears.

    >>> mapped_luts(np.array([[0, 1, 1, 0] * 8], np.uint8), 4, 7)
    (1, 0)
    """
    return _mapped(columns.shape, np.ascontiguousarray(columns).tobytes(), inputs, widest)


@functools.lru_cache(256)
def _mapped(shape: tuple[int, int], packed: bytes, inputs: int, widest: int) -> tuple[int, int]:
    columns = np.frombuffer(packed, np.uint8).reshape(shape)
    address = max((shape[1] - 1).bit_length(), inputs)
    padded = np.zeros((shape[0], 1 << address), np.uint8)
    padded[:, : shape[1]] = columns
    areas = tuple(1 << max(n - inputs, 0) if n > 1 else 0 for n in range(widest + 1))
    halved = [_halved(column) for column in padded]
    resets = len({halves for _, halves in halved} - {()})
    luts = _covered([rest for rest, _ in halved], areas)
    shared = [_numbered(padded, low) for low in range(inputs, address - 1)]
    counts = [
        _covered([*table], areas) + _covered([*numbers], areas)
        for table, numbers in shared
        if table.size < padded.size
    ]
    if min(counts, default=luts + resets) < luts + resets:
        return min(counts), 0
    return luts, resets


def _covered(columns: Sequence[Bits], areas: tuple[int, ...]) -> int:
    """Return the LUTs of tables; the opposite of a table, or of an address bit, takes one more."""
    graph = ChoiceGraph(areas.count(1) + 1)
    outputs = {(graph.add(column), bool(column[0])) for column in columns}
    signals = {(signal, is_high) for signal, is_high in outputs if signal is not None}
    choices = {signal for signal, _ in signals if signal >= 0}
    address = {(signal, False) for signal, _ in signals if signal < 0}
    opposites = len(signals | address) - len(choices) - len(address)
    return (cover(graph, sorted(choices), areas) if choices else 0) + opposites


def _numbered(columns: Bits, low: int) -> tuple[Bits, Bits]:
    """Return the distinct parts of a table side by side, and a table of the part at each place.

    `low`: bits of the address within a part.
    """
    parts = columns.reshape(len(columns), -1, 1 << low).transpose(1, 0, 2)
    kinds, places = np.unique(parts.reshape(len(parts), -1), axis=0, return_inverse=True)
    bits = (len(kinds) - 1).bit_length()
    table = np.zeros((len(columns), 1 << bits, 1 << low), np.uint8)
    table[:, : len(kinds)] = kinds.reshape(len(kinds), len(columns), -1).transpose(1, 0, 2)
    numbers = places.reshape(1, -1) >> np.arange(bits).reshape(-1, 1) & 1
    return table.reshape(len(columns), -1), numbers.astype(np.uint8)


def _halved(column: Bits) -> tuple[Bits, tuple[bool, ...]]:
    """Return a column without its constant halves, and which halves those were."""
    halves: tuple[bool, ...] = ()
    while len(column) > 2:
        low, high = np.split(column, 2)
        is_high = bool(high.min() == high.max())
        if not is_high and low.min() != low.max():
            break
        column, halves = (low, (*halves, True)) if is_high else (high, (*halves, False))
        if column.min() == column.max():
            return column, halves[:-1]
    return column, halves
