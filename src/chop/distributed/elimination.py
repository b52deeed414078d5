"""Exact minimum of a sum of cost tables, by elimination of one variable after another.

Eliminating a variable adds all tables that mention it and takes the minimum over it. The result is
a table over its neighbours. The last number is the minimum of the whole sum. A variable whose joint
table would exceed `MAX_STATES` entries is eliminated from groups of its tables separately. The last
number is then a lower bound of the minimum ("mini-buckets").

An assignment is read in the reverse order. Each step knows its regret: the amount by which a value
exceeds the best one. The cost of an assignment is the bound plus its regrets.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAX_STATES = 4_000_000
"""Entries of the largest table; 32 MB."""


class CostTable(NamedTuple):
    """Costs over the values of the variables in `scope`, one array dimension each."""

    scope: tuple[str, ...]
    costs: np.ndarray


@dataclass(frozen=True)
class EliminationStep:
    """Elimination of one variable: its tables, and the sum of the minima that replaced them."""

    variable: str
    tables: tuple[CostTable, ...]
    messages: tuple[CostTable, ...]

    def regrets(self, assignment: Mapping[str, int]) -> np.ndarray:
        """Return the regret of each value, given the values of the variables decided so far."""
        costs = sum(_row(table, self.variable, assignment) for table in self.tables)
        best = sum(_entry(message, assignment) for message in self.messages)
        return np.asarray(costs) - best


@dataclass(frozen=True)
class Elimination:
    """Result of an elimination: steps in order, and one table over the variables that remain."""

    steps: tuple[EliminationStep, ...]
    rest: CostTable

    @property
    def bound(self) -> float:
        """Lower bound of the minimum; the minimum itself if no table was divided."""
        return float(self.rest.costs.min())

    @property
    def is_exact(self) -> bool:
        """True if every variable was eliminated from one joint table."""
        return all(len(step.messages) == 1 for step in self.steps)


def _row(table: CostTable, variable: str, assignment: Mapping[str, int]) -> np.ndarray:
    index = tuple(slice(None) if n == variable else assignment[n] for n in table.scope)
    row: np.ndarray = table.costs[index]
    return row


def _entry(table: CostTable, assignment: Mapping[str, int]) -> float:
    return float(table.costs[tuple(assignment[n] for n in table.scope)])


def add(tables: Sequence[CostTable], scope: Sequence[str]) -> np.ndarray:
    """Return the sum of `tables`, with one dimension per variable of `scope`."""
    total: np.ndarray = np.zeros([1] * len(scope))
    for table in tables:
        order = sorted(range(len(table.scope)), key=lambda i: scope.index(table.scope[i]))
        costs = table.costs.transpose(order)
        places = {scope.index(name) for name in table.scope}
        sizes = iter(costs.shape)
        total = total + costs.reshape(
            [next(sizes) if i in places else 1 for i in range(len(scope))]
        )
    return total


def elimination_order(tables: Sequence[CostTable], keep: Sequence[str] = ()) -> list[str]:
    """Return the variables except `keep`, each time the one with the smallest joint table."""
    sizes = {n: s for table in tables for n, s in zip(table.scope, table.costs.shape, strict=True)}
    neighbours: dict[str, set[str]] = {name: set() for name in sizes}
    for table in tables:
        for name in table.scope:
            neighbours[name] |= set(table.scope)
    left = [name for name in sizes if name not in keep]
    order = []
    while left:
        best = min(left, key=lambda n: math.prod(sizes[m] for m in neighbours[n] | {n}))
        left.remove(best)
        order.append(best)
        around = neighbours.pop(best) - {best}
        for name in around:
            neighbours[name] = (neighbours[name] | around) - {best}
    return order


def eliminate(tables: Sequence[CostTable], order: Sequence[str]) -> Elimination:
    """Eliminate the variables of `order`; the other variables remain in `rest`."""
    places: dict[str, dict[int, CostTable]] = {}
    counter = itertools.count()
    alive: dict[int, CostTable] = {}

    def insert(table: CostTable) -> None:
        key = next(counter)
        alive[key] = table
        for name in table.scope:
            places.setdefault(name, {})[key] = table

    for table in tables:
        insert(table)
    steps = []
    for variable in order:
        bucket = places.pop(variable)
        for key, table in bucket.items():
            del alive[key]
            for name in table.scope:
                if name != variable:
                    del places[name][key]
        messages = tuple(_minimum(group, variable) for group in _groups(list(bucket.values())))
        steps.append(EliminationStep(variable, tuple(bucket.values()), messages))
        for message in messages:
            insert(message)
    left = list(alive.values())
    scope = tuple(dict.fromkeys(name for table in left for name in table.scope))
    return Elimination(tuple(steps), CostTable(scope, add(left, scope)))


def _minimum(group: Sequence[CostTable], variable: str) -> CostTable:
    scope = tuple(dict.fromkeys(n for table in group for n in table.scope if n != variable))
    return CostTable(scope, add(group, (*scope, variable)).min(axis=-1))


def _groups(bucket: list[CostTable]) -> list[list[CostTable]]:
    """Divide tables into groups whose joint table has at most `MAX_STATES` entries."""
    groups: list[tuple[dict[str, int], list[CostTable]]] = []
    for table in sorted(bucket, key=lambda t: -t.costs.size):
        sizes = dict(zip(table.scope, table.costs.shape, strict=True))
        for joint, members in groups:
            if math.prod((joint | sizes).values()) <= MAX_STATES:
                joint.update(sizes)
                members.append(table)
                break
        else:
            groups.append((sizes, [table]))
    return [members for _, members in groups]


def best_assignment(
    steps: Sequence[EliminationStep], fixed: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the value of least regret of every variable, from the last step to the first."""
    assignment = dict(fixed or {})
    for step in reversed(steps):
        assignment[step.variable] = int(step.regrets(assignment).argmin())
    return assignment


def assignments(
    steps: Sequence[EliminationStep], limit: int, below: float
) -> Iterator[tuple[float, dict[str, int] | None]]:
    """Yield (total regret, assignment) by rising regret, while the regret is less than `below`.

    The search stops after `limit` partial assignments. The last item has no assignment: every
    assignment that was not yielded has at least its regret.
    """
    order = tuple(reversed(steps))
    names = [step.variable for step in order]
    ties = itertools.count()
    heap: list[tuple[float, int, int, tuple[int, ...]]] = [(0.0, 0, next(ties), ())]
    while heap and next(ties) < limit:
        regret, _, _, values = heapq.heappop(heap)
        assignment = dict(zip(names, values, strict=False))
        if len(values) == len(order):
            yield regret, assignment
            continue
        totals = regret + np.maximum(order[len(values)].regrets(assignment), 0.0)
        for value in np.flatnonzero(totals < below).tolist():
            entry = (float(totals[value]), -len(values), next(ties), (*values, value))
            heapq.heappush(heap, entry)
    yield (heap[0][0] if heap else below), None
