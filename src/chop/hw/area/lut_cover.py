"""What the mapper makes of a small table: a graph of choices, covered by LUTs.

A table is a function of its address. Split by one bit of the address after the other it is a graph
of two-way choices, in which what is equal, or the opposite, is there once. LUTs cover it as the
mapper's do: each takes a part of the graph that few signals lead into, and the cheapest parts are
kept. No sum of amounts says how much a table of a smooth function shares; this does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]
Cut = frozenset[int]
"""Signals that lead into a LUT: places of choices, and below zero bits of the address."""
ROUNDS = 2
"""Of covering: each knows how often what the last one chose is used."""
KEPT = 5
"""Covers of a choice that are looked at further."""


@dataclass
class Choices:
    """A graph of choices by one bit each; parts come before what is made of them."""

    inputs: int
    """Of a LUT: a function of so many bits is not split further."""
    places: dict[bytes, int] = field(default_factory=dict)
    nodes: list[Cut | tuple[int, int | None, int | None]] = field(default_factory=list)
    """The bits of the address that a LUT needs; or the bit that chooses, and what between, where
    None is a constant."""

    def add(self, function: Bits) -> int | None:
        """The signal of a function of the address; a single bit of it is a number below zero."""
        half = len(function) // 2
        while half and (function[:half] == function[half:]).all():
            function, half = function[:half], half // 2
        if not half:
            return None
        function = function ^ function[0]  # its opposite takes the same LUTs
        key = function.tobytes()
        if key not in self.places:
            self.places[key] = self._place(function, half)
        return self.places[key]

    def _place(self, function: Bits, half: int) -> int:
        bit = half.bit_length() - 1
        if bit < self.inputs:
            needed = _needed(function, bit + 1)
            is_bit = len(needed) == 1
            self.nodes.extend([] if is_bit else [needed])
        else:
            low, high = self.add(function[:half]), self.add(function[half:])
            is_bit = low is None and high is None
            self.nodes.extend([] if is_bit else [(bit, low, high)])
        return -1 - bit if is_bit else len(self.nodes) - 1


def _needed(function: Bits, bits: int) -> Cut:
    """The bits of the address that a function depends on."""
    pairs = [function.reshape(-1, 2, 1 << bit) for bit in range(bits)]
    return frozenset(-1 - b for b, p in enumerate(pairs) if (p[:, 0] != p[:, 1]).any())


def cover(graph: Choices, outputs: list[int], areas: tuple[int, ...]) -> int:
    """LUTs that give `outputs`; `areas`: of functions of so many inputs."""
    uses = np.zeros(len(graph.nodes))
    chosen_from = (part for node in graph.nodes if isinstance(node, tuple) for part in node[1:])
    for place in (*outputs, *chosen_from):
        if place is not None and place >= 0:
            uses[place] += 1
    uses = np.maximum(uses, 1.0)
    best: int | None = None
    for _ in range(ROUNDS):
        chosen = _cheapest(graph, uses, areas)
        found, used = _taken(chosen, outputs, areas)
        best = found if best is None else min(best, found)
        uses = np.maximum((uses + used) / 2, 1.0)
    return best or 0


def _cheapest(graph: Choices, uses: npt.NDArray[np.float64], areas: tuple[int, ...]) -> list[Cut]:
    """For each choice, what leads into the LUT that is cheapest with all that is behind it."""
    cuts: list[list[Cut]] = []
    flow: list[float] = []
    for node, count in zip(graph.nodes, uses.tolist(), strict=True):
        found = _cuts(node, cuts) if isinstance(node, tuple) else {node}
        costs = [
            (areas[len(cut)] + sum(flow[p] for p in cut if p >= 0), len(cut), sorted(cut))
            for cut in found
            if len(cut) < len(areas)
        ]
        costs.sort()
        cuts.append([frozenset(cut) for _, _, cut in costs[:KEPT]])
        flow.append(costs[0][0] / count)
    return [kept[0] for kept in cuts]


def _cuts(node: tuple[int, int | None, int | None], cuts: list[list[Cut]]) -> set[Cut]:
    """What may lead into a LUT of a choice: signals of its parts, or what leads into those."""
    bit, *parts = node
    sides = [
        [frozenset[int]()] if p is None else [frozenset({p}), *(cuts[p] if p >= 0 else ())]
        for p in parts
    ]
    return {low | high | {-1 - bit} for low in sides[0] for high in sides[1]}


def _taken(
    chosen: list[Cut], outputs: list[int], areas: tuple[int, ...]
) -> tuple[int, npt.NDArray[np.float64]]:
    """LUTs of the parts that are needed, and how often each of them is used."""
    used = np.zeros(len(chosen))
    for output in outputs:
        used[output] += 1
    luts = 0
    for place in reversed(range(len(chosen))):
        if used[place]:
            luts += areas[len(chosen[place])]
            for part in chosen[place]:
                if part >= 0:
                    used[part] += 1
    return luts, used


def mapped_luts(columns: Bits, inputs: int, widest: int) -> tuple[int, int]:
    """LUTs of tables of one bit, and of what sets or clears registers behind them.

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
    numbered = [_numbered(padded, low) for low in range(inputs, address - 1)]
    smaller = [(table, kinds) for table, kinds in numbered if table.size < padded.size]
    found = [_covered([*table], areas) + _covered([*kinds], areas) for table, kinds in smaller]
    if min(found, default=luts + resets) < luts + resets:
        return min(found), 0
    return luts, resets


def _covered(columns: Sequence[Bits], areas: tuple[int, ...]) -> int:
    """LUTs of tables; one that is the opposite of another, or of a bit, takes one more."""
    graph = Choices(areas.count(1) + 1)
    outputs = {(graph.add(column), bool(column[0])) for column in columns}
    known = {(signal, is_high) for signal, is_high in outputs if signal is not None}
    made = {signal for signal, _ in known if signal >= 0}
    given = {(signal, False) for signal, _ in known if signal < 0}
    opposites = len(known | given) - len(made) - len(given)
    return cover(graph, sorted(made), areas) + opposites


def _numbered(columns: Bits, low: int) -> tuple[Bits, Bits]:
    """The parts of a table that differ, side by side, and a table of which of them is where.

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
    """What is left of a column without its constant halves, and which halves those were."""
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
