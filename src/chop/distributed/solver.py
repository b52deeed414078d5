"""Solver that finds the cheapest strategies along one axis, exactly, by dynamic programming.

It visits the values in order. The table stores the least cost so far for every combination of
layouts of the live values. A value leaves the table after its last reader, by a minimum. The table
stays small for a chain of blocks of any length.

A value with several readers can have a second layout, paid for once: its options are pairs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from chop.distributed.layouts import Layout, Use
from chop.distributed.strategies import Strategy
from chop.distributed.variables import Price, Variable

PRUNED_STATES = 5_000
"""Entries of the table above which dominated options are removed."""
MAX_STATES = 500_000
"""Entries of the table above which the value with most options is decided early, inexactly."""
RIVALS = 3
"""Cheapest options of a value that the others are compared with."""


class LayoutOption(NamedTuple):
    """Layout of a value, and the second layout it is copied to, if any."""

    layout: Layout
    second: Use | None


@dataclass(frozen=True)
class Solution:
    """Strategy of every value; `is_exact` unless the table grew too large."""

    chosen: dict[str, Strategy]
    is_exact: bool


@dataclass(frozen=True)
class _Minimum:
    """Best index for `name`, given the indices of the values `axes`.

    `is_choice`: an index of the choices of `name`, otherwise of its options.
    """

    name: str
    axes: list[str]
    best: np.ndarray
    is_choice: bool = False


def solve(decisions: list[Variable], seconds_per_byte: float) -> Solution:
    """Return the choices with the least seconds + `seconds_per_byte` × bytes."""
    return _Search(decisions, seconds_per_byte).run()


@dataclass
class _Search:
    decisions: list[Variable]
    rate: float
    live: list[str] = field(default_factory=list)
    table: np.ndarray = field(default_factory=lambda: np.zeros(()))
    steps: list[_Minimum] = field(default_factory=list)
    is_exact: bool = True
    costs: dict[tuple[str, Layout, Use], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.variables = {v.name: v for v in self.decisions}
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
        """Add an axis for the choices of `variable`, with the cost to read the live values."""
        own = np.array([self._cost(c.price) for c in variable.choices])
        table = self.table[..., None] + own
        for name in dict.fromkeys(n for c in variable.choices for n, _ in c.uses):
            place = self.live.index(name)
            shape = [1] * table.ndim
            shape[place], shape[-1] = table.shape[place], len(own)
            uses = [[use for n, use in c.uses if n == name] for c in variable.choices]
            options = self.options[name]
            reads = [[sum(self._read(name, o, u) for u in each) for each in uses] for o in options]
            table = table + np.array(reads).reshape(shape)
        self.table = table

    def _read(self, name: str, option: LayoutOption, use: Use) -> float:
        """Return the cost of one use of a value, given its option."""
        if option.second == use:
            return 0.0
        key = (name, option.layout, use)
        if key not in self.costs:
            self.costs[key] = self._cost(self.variables[name].reading(option.layout, use))
        return self.costs[key]

    def _take_minimum(self, name: str, trailing: list[str]) -> None:
        """Decide `name`, which has no more readers, for every combination of the others."""
        place = self.live.index(name)
        best = self.table.argmin(axis=place).astype(np.int16)
        self.table = self.table.min(axis=place)
        self.live = self.live[:place] + self.live[place + 1 :]
        self.steps.append(_Minimum(name, self.live + trailing, best))

    def _choices_to_options(self, variable: Variable) -> None:
        """Reduce the choices to the cheapest one per option."""
        layouts = [c.strategy.result for c in variable.choices]
        columns, best = [], []
        for option in self.options[variable.name]:
            same = [i for i, layout in enumerate(layouts) if layout == option.layout]
            part = self.table[..., same]
            copy = variable.reading(option.layout, option.second) if option.second else Price()
            columns.append(part.min(axis=-1) + self._cost(copy))
            best.append(np.array(same, dtype=np.int16)[part.argmin(axis=-1)])
        self.table = np.stack(columns, axis=-1)
        self.live = [*self.live, variable.name]
        self.steps.append(
            _Minimum(variable.name, self.live, np.stack(best, axis=-1), is_choice=True)
        )

    def _shrink(self) -> None:
        """Keep the table small: first exactly, then if needed inexactly."""
        if self.table.size > PRUNED_STATES:
            for name in self.live:
                self._keep(name, self._useful(name))
        while self.table.size > MAX_STATES:
            self.is_exact = False
            place = int(np.argmax(self.table.shape))
            best = np.unravel_index(self.table.argmin(), self.table.shape)[place]
            self._keep(self.live[place], [int(best)])

    def _useful(self, name: str) -> list[int]:
        """Return the options of `name` that no other option replaces at the same cost or less."""
        place = self.live.index(name)
        columns = np.moveaxis(self.table, place, 0).reshape(self.table.shape[place], -1)
        rivals = np.argsort(columns.mean(axis=1), kind="stable")[:RIVALS].tolist()
        useful: list[int] = []
        for option in range(len(columns)):
            others = [r for r in rivals if r != option and (r in useful or r > option)]
            if not any(self._replaces(name, columns, r, option) for r in others):
                useful.append(option)
        return useful

    def _replaces(self, name: str, columns: np.ndarray, rival: int, option: int) -> bool:
        """Return True if `rival` costs no more, even with the most expensive future readers."""
        better, worse = self.options[name][rival], self.options[name][option]
        extra = 0.0
        for uses in self.readers[name].values():
            more = [self._read(name, better, u) - self._read(name, worse, u) for u in uses]
            extra += max(0.0, *more)
        return bool((columns[rival] + extra <= columns[option]).all())

    def _keep(self, name: str, indices: list[int]) -> None:
        """Drop all other options of `name`."""
        if len(indices) == len(self.options[name]):
            return
        self.table = self.table.take(indices, axis=self.live.index(name))
        self.options[name] = [self.options[name][i] for i in indices]
        self.steps.append(_Minimum(name, [name], np.array(indices)))

    def _trace_back(self) -> dict[str, Strategy]:
        """Read the strategy of every value from the last minimum to the first."""
        picked: dict[str, int] = {}
        chosen: dict[str, Strategy] = {}
        for step in reversed(self.steps):
            picked[step.name] = int(step.best[tuple(picked[n] for n in step.axes)])
            if step.is_choice:
                choice = self.variables[step.name].choices[picked[step.name]]
                chosen[step.name] = choice.strategy
        return {v.name: chosen[v.name] for v in self.decisions}


def _options(variable: Variable, readers: dict[str, list[Use]]) -> list[LayoutOption]:
    """Return every layout alone, and with each second layout that several readers may use."""
    counts = Counter(use for uses in readers.values() for use in uses)
    shared = sorted(use for use, count in counts.items() if count > 1)
    return [
        LayoutOption(layout, second)
        for layout, second in product(variable.layouts, [None, *shared])
        if second is None or variable.reading(layout, second) != Price()
    ]
