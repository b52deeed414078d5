"""The cheapest way to make every value along one axis, exactly, by dynamic programming.

Values are taken in order. The table holds, for every combination of layouts of the values that
are still to be read, the least cost so far; a value read for the last time leaves the table by
taking its minimum. A graph that is a chain of blocks keeps the table small however long it is.

A value read more than once may be held in a second layout, paid for once: its options are pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from chop.distributed.layouts import Layout, Use
from chop.distributed.strategies import Strategy
from chop.distributed.variables import Choice, Price, Variable

MAX_STATES = 2_000_000
"""Entries of the table beyond which the value with most options is settled early."""


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

    def __post_init__(self) -> None:
        self.known = {v.name: v for v in self.decisions}
        self.last_reader: dict[str, str] = {}
        demanded: dict[str, list[set[Use]]] = {v.name: [] for v in self.decisions}
        for variable in self.decisions:
            by_value: dict[str, set[Use]] = {}
            for name, use in (u for c in variable.choices for u in c.uses):
                by_value.setdefault(name, set()).add(use)
                self.last_reader[name] = variable.name
            for name, uses in by_value.items():
                demanded[name].append(uses)
        self.options = {v.name: _options(v, demanded[v.name]) for v in self.decisions}

    def run(self) -> Solution:
        for variable in self.decisions:
            self._add_choices(variable)
            for name in [n for n in self.live if self.last_reader.get(n) == variable.name]:
                self._take_minimum(name, [variable.name])
            self._choices_to_options(variable)
            if variable.name not in self.last_reader:
                self._take_minimum(variable.name, [])
            while self.table.size > MAX_STATES:
                self._settle()
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

    def _reading(self, name: str, choices: tuple[Choice, ...]) -> np.ndarray:
        """Cost of reading `name`: a row for each of its options, a column for each choice."""
        source = self.known[name]
        cost: dict[tuple[Layout, Use], float] = {}

        def one(option: Option, use: Use) -> float:
            if option.second == use:
                return 0.0
            key = (option.layout, use)
            if key not in cost:
                cost[key] = self._cost(source.reading(*key))
            return cost[key]

        uses = [[use for n, use in c.uses if n == name] for c in choices]
        rows = [[sum(one(o, u) for u in each) for each in uses] for o in self.options[name]]
        return np.array(rows)

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

    def _settle(self) -> None:
        """Give the value with most options the one of the cheapest entry."""
        self.is_exact = False
        place = int(np.argmax(self.table.shape))
        name, best = self.live[place], np.unravel_index(self.table.argmin(), self.table.shape)
        self.table = self.table.take([best[place]], axis=place)
        self.options[name] = [self.options[name][best[place]]]
        self.steps.append(_Step(name, [], np.array(best[place])))

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


def _options(variable: Variable, demanded: list[set[Use]]) -> list[Option]:
    """Every layout alone, and with each second layout that more than one reader may ask for."""
    shared = {u for uses in demanded for u in uses if sum(u in other for other in demanded) > 1}
    pairs = product(variable.layouts, [None, *sorted(shared)])
    return [
        Option(layout, second)
        for layout, second in pairs
        if second is None or variable.reading(layout, second) != Price()
    ]
