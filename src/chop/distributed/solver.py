"""The cheapest way to make every value along one axis, exactly, by dynamic programming.

Values are taken in order. The table holds, for every combination of layouts of the values that
are still to be read, the least cost so far; a value read for the last time leaves the table by
taking its minimum. A graph that is a chain of blocks keeps the table small however long it is.

A value read more than once may be held in a second layout, paid for once: its options are pairs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from chop.distributed.layouts import Layout, Use
from chop.distributed.strategies import Strategy
from chop.distributed.variables import Price, PricedStrategy, Variable

PRUNED_STATES = 5_000
"""Entries of the table beyond which options that cannot be of use are looked for."""
MAX_STATES = 500_000
"""Entries of the table beyond which the value with most options is settled early."""
RIVALS = 3
"""How many of a value's cheapest options the others are compared with."""


class Option(NamedTuple):
    """The layout a value is made in, and one more it is held in, if any."""

    layout: Layout
    second: Use | None


@dataclass(frozen=True)
class Solution:
    """A strategy for every value; `is_exact` unless the table grew too large."""

    chosen: dict[str, Strategy]
    is_exact: bool


@dataclass(frozen=True)
class _Step:
    """A minimum that was taken: what `name` is, given what the values of `axes` are.

    `is_choice`: the minimum was over the choices of `name`, and else over its options.
    """

    name: str
    axes: list[str]
    best: np.ndarray
    is_choice: bool = False


def solve(decisions: list[Variable], seconds_per_byte: float) -> Solution:
    """The choices of least total seconds + `seconds_per_byte` × bytes; ties go to the first."""
    return _Search(decisions, seconds_per_byte).run()


@dataclass
class _Search:
    decisions: list[Variable]
    rate: float
    live: list[str] = field(default_factory=list)
    table: np.ndarray = field(default_factory=lambda: np.zeros(()))
    steps: list[_Step] = field(default_factory=list)
    is_exact: bool = True
    costs: dict[tuple[str, Layout, Use], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {v.name: v for v in self.decisions}
        self.readers: dict[str, dict[str, list[Use]]] = {v.name: {} for v in self.decisions}
        for variable in self.decisions:
            for name, use in dict.fromkeys(u for c in variable.choices for u in c.uses):
                self.readers[name].setdefault(variable.name, []).append(use)
        self.last_reader = {n: list(r)[-1] for n, r in self.readers.items() if r}
        self.options = {v.name: _options(v, self.readers[v.name]) for v in self.decisions}

    def run(self) -> Solution:
        for variable in self.decisions:
            self._add_choices(variable)
            for name in [n for n in self.live if self.last_reader.get(n) == variable.name]:
                self._take_minimum(name, [variable.name])
            self._choices_to_options(variable)
            if variable.name not in self.last_reader:
                self._take_minimum(variable.name, [])
            for name in {name for c in variable.choices for name, _ in c.uses}:
                self.readers[name].pop(variable.name)
            self._shrink()
        return Solution(self._trace_back(), self.is_exact)

    def _cost(self, price: Price) -> float:
        return price.seconds + self.rate * price.bytes

    def _add_choices(self, variable: Variable) -> None:
        """One more axis, for the choices of `variable`, with what they cost on what is live."""
        own = np.array([self._cost(c.price) for c in variable.choices])
        table = self.table[..., None] + own
        for name in dict.fromkeys(n for c in variable.choices for n, _ in c.uses):
            place = self.live.index(name)
            shape = [1] * table.ndim
            shape[place], shape[-1] = table.shape[place], len(own)
            table = table + self._reading(name, variable.choices).reshape(shape)
        self.table = table

    def _reading(self, name: str, choices: tuple[PricedStrategy, ...]) -> np.ndarray:
        """Cost of reading `name`: a row for each of its options, a column for each choice."""
        uses = [[use for n, use in c.uses if n == name] for c in choices]
        options = self.options[name]
        return np.array(
            [[sum(self._read(name, o, u) for u in each) for each in uses] for o in options]
        )

    def _read(self, name: str, option: Option, use: Use) -> float:
        """Cost of one use of a value, given what it is held as."""
        if option.second == use:
            return 0.0
        key = (name, option.layout, use)
        if key not in self.costs:
            self.costs[key] = self._cost(self.known[name].reading(option.layout, use))
        return self.costs[key]

    def _take_minimum(self, name: str, trailing: list[str]) -> None:
        """Settle `name`, which nobody reads any more, for every combination of the others."""
        place = self.live.index(name)
        best = self.table.argmin(axis=place).astype(np.int16)
        self.table = self.table.min(axis=place)
        self.live = self.live[:place] + self.live[place + 1 :]
        self.steps.append(_Step(name, self.live + trailing, best))

    def _choices_to_options(self, variable: Variable) -> None:
        """Of the choices that give one layout only the cheapest matters from here on."""
        layouts = [c.strategy.result for c in variable.choices]
        columns, best = [], []
        for option in self.options[variable.name]:
            same = [i for i, layout in enumerate(layouts) if layout == option.layout]
            part = self.table[..., same]
            held = variable.reading(option.layout, option.second) if option.second else Price()
            columns.append(part.min(axis=-1) + self._cost(held))
            best.append(np.array(same, dtype=np.int16)[part.argmin(axis=-1)])
        self.table = np.stack(columns, axis=-1)
        self.live = [*self.live, variable.name]
        self.steps.append(_Step(variable.name, self.live, np.stack(best, axis=-1), is_choice=True))

    def _shrink(self) -> None:
        """Keep the table small: first by what is exact, then by what is not."""
        if self.table.size > PRUNED_STATES:
            for name in self.live:
                self._keep(name, self._useful(name))
        while self.table.size > MAX_STATES:
            self.is_exact = False
            place = int(np.argmax(self.table.shape))
            best = np.unravel_index(self.table.argmin(), self.table.shape)[place]
            self._keep(self.live[place], [int(best)])

    def _useful(self, name: str) -> list[int]:
        """Options of `name` that another cannot replace at no more cost, whatever comes."""
        place = self.live.index(name)
        columns = np.moveaxis(self.table, place, 0).reshape(self.table.shape[place], -1)
        rivals = np.argsort(columns.mean(axis=1), kind="stable")[:RIVALS].tolist()
        kept: list[int] = []
        for option in range(len(columns)):
            others = [r for r in rivals if r != option and (r in kept or r > option)]
            if not any(self._replaces(name, columns, r, option) for r in others):
                kept.append(option)
        return kept

    def _replaces(self, name: str, columns: np.ndarray, rival: int, option: int) -> bool:
        """Whether with `rival` every reader still to come is served, and all cost no more."""
        better, worse = self.options[name][rival], self.options[name][option]
        extra = 0.0
        for uses in self.readers[name].values():
            more = [self._read(name, better, u) - self._read(name, worse, u) for u in uses]
            extra += max(0.0, *more)
        return bool((columns[rival] + extra <= columns[option]).all())

    def _keep(self, name: str, kept: list[int]) -> None:
        """Drop every option of `name` but these."""
        if len(kept) == len(self.options[name]):
            return
        self.table = self.table.take(kept, axis=self.live.index(name))
        self.options[name] = [self.options[name][i] for i in kept]
        self.steps.append(_Step(name, [name], np.array(kept)))

    def _trace_back(self) -> dict[str, Strategy]:
        """What every value is, from the last minimum to the first."""
        picked: dict[str, int] = {}
        chosen: dict[str, Strategy] = {}
        for step in reversed(self.steps):
            picked[step.name] = int(step.best[tuple(picked[n] for n in step.axes)])
            if step.is_choice:
                choices = self.known[step.name].choices
                chosen[step.name] = choices[picked[step.name]].strategy
        return {v.name: chosen[v.name] for v in self.decisions}


def _options(variable: Variable, readers: dict[str, list[Use]]) -> list[Option]:
    """Every layout alone, and with each second layout that more than one reader may ask for."""
    asked = Counter(use for uses in readers.values() for use in uses)
    shared = sorted(use for use, times in asked.items() if times > 1)
    pairs = product(variable.layouts, [None, *shared])
    return [
        Option(layout, second)
        for layout, second in pairs
        if second is None or variable.reading(layout, second) != Price()
    ]
