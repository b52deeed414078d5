"""The planning problem: one variable per value, cost tables, and segments that repeat.

A variable has the options of a value (`chop.distributed.domains`). A value with several readers has
a second variable: the layout in which it is published to them, paid for once. The tables are the
cost of each option, and the cost to read a value, which depends on both sides.

The values are divided into segments where only one value is live. Segments of the same structure
share their tables and their elimination. They are not forced to have the same options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from chop.distributed.domains import (
    AGAIN,
    PARTS,
    SECONDS,
    STATIC,
    STEP,
    STORED,
    Face,
    Filter,
    Option,
    Setting,
    ValueOptions,
    domain_of,
    options_of,
    published_uses,
    reading_costs,
    structure_of,
)
from chop.distributed.elimination import (
    CostTable,
    Elimination,
    best_assignment,
    eliminate,
    elimination_order,
)
from chop.distributed.program import Program, ProgramValue

RECOMPUTE = "recompute"
"""Variable of a segment: 0 stores its activations, 1 recomputes them in backward."""
MANY_READERS = 6
"""Readers from which a value may cross segments, such as the encoder's output in every decoder."""


class PartWeights(NamedTuple):
    """PartWeights of the parts of a cost in the objective.

    `rate`: seconds per byte. `micro_batches`: per step. `in_flight`: micro-batches whose
    activations are stored at the same time.
    """

    rate: float
    micro_batches: int = 1
    in_flight: int = 1

    def of(self, *, recomputes: bool) -> np.ndarray:
        """Return one weight per part."""
        weights = np.zeros(PARTS)
        weights[[SECONDS, STEP, STATIC]] = self.micro_batches, 1.0, self.rate
        weights[STORED] = 0.0 if recomputes else self.rate * self.in_flight
        weights[AGAIN] = self.micro_batches if recomputes else 0.0
        return weights


def published(name: str) -> str:
    """Return the name of the variable for the layout in which `name` is published."""
    return f"{name} published"


class Factor(NamedTuple):
    """Costs over `scope`, parts first; `is_kept`: stored even if the segment is recomputed."""

    scope: tuple[str, ...]
    costs: np.ndarray
    is_kept: bool


@dataclass(eq=False)
class SegmentKind:
    """Structure that segments share: its factors by local variable names.

    `keep`: local names of the variables that other segments mention.
    """

    factors: list[Factor]
    keep: tuple[str, ...]
    can_recompute: bool
    _order: list[str] = field(default_factory=list)
    _solved: dict[PartWeights, Elimination] = field(default_factory=dict)
    _decoded: dict[Any, tuple[dict[str, int], np.ndarray]] = field(default_factory=dict)

    def eliminate(self, weights: PartWeights) -> Elimination:
        """Eliminate all variables but `keep`, `RECOMPUTE` last; cached."""
        if weights not in self._solved:
            tables = self._tables(weights)
            if not self._order:
                again = [RECOMPUTE] if self.can_recompute else []
                self._order = elimination_order(tables, (*self.keep, RECOMPUTE)) + again
            self._solved[weights] = eliminate(tables, self._order)
        return self._solved[weights]

    def _tables(self, weights: PartWeights) -> list[CostTable]:
        stored = weights.of(recomputes=False)
        if not self.can_recompute:
            return [CostTable(f.scope, np.tensordot(stored, f.costs, 1)) for f in self.factors]
        both = np.stack([stored, weights.of(recomputes=True)])
        return [
            CostTable(f.scope, np.tensordot(stored, f.costs, 1))
            if f.is_kept
            else CostTable((RECOMPUTE, *f.scope), np.tensordot(both, f.costs, 1))
            for f in self.factors
        ]

    def decode(
        self, weights: PartWeights, outer: Mapping[str, int]
    ) -> tuple[dict[str, int], np.ndarray]:
        """Return the best values given those of `outer`, and their cost by part; cached."""
        key = (weights, *outer.items())
        if key not in self._decoded:
            values = best_assignment(self.eliminate(weights).steps, outer)
            self._decoded[key] = values, self.parts(values)
        return self._decoded[key]

    def parts(self, values: Mapping[str, int]) -> np.ndarray:
        """Return the cost of an assignment by part; `STORED` and `AGAIN` as they are paid."""
        total = np.zeros(PARTS)
        is_again = bool(values.get(RECOMPUTE, 0))
        for factor in self.factors:
            place: tuple[Any, ...] = (slice(None), *(values[n] for n in factor.scope))
            costs = factor.costs[place].copy()
            is_stored = factor.is_kept or not is_again
            costs[AGAIN if is_stored else STORED] = 0.0
            total += costs
        return total


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive values. `names`: local variable name -> variable of the problem."""

    kind: SegmentKind
    values: tuple[str, ...]
    names: Mapping[str, str]


class PlanningProblem:
    """Variables and segments of a program in a setting.

    `allowed` restricts the options. `choices` replaces the options of some values.
    """

    def __init__(
        self,
        program: Program,
        setting: Setting,
        allowed: Sequence[Filter] = (),
        choices: Mapping[str, list[Option]] | None = None,
    ) -> None:
        self.program, self.setting, self.allowed = program, setting, tuple(allowed)
        self.choices = choices or {}
        self.readers = program.readers()
        self.values = {value.name: value for value in program.values}
        self._interned: dict[Any, Any] = {}
        self.domains = {v.name: self._domain(v) for v in program.values}
        self.published = {
            name: self._published(name)
            for name, readers in self.readers.items()
            if len(readers) > 1 and not self.values[name].is_fixed
        }
        self._kinds: dict[Any, SegmentKind] = {}
        self.segments = [self._segment(group) for group in _segments(self, program.values)]

    # -- variables -----------------------------------------------------------------------------

    def _domain(self, value: ProgramValue) -> ValueOptions:
        key = structure_of(value)
        options = self._options(value, key)
        chosen = (key, self._words(options) if value.name in self.choices else id(options))
        if chosen not in self._interned:
            operands = list(dict.fromkeys(r.operand for r in value.references))
            self._interned[chosen] = domain_of(value, self.setting, options, operands)
        domain: ValueOptions = self._interned[chosen]
        return domain

    def _words(self, options: list[Option]) -> str:
        """Return a text that is equal for equal lists of options."""
        if id(options) not in self._interned:
            self._interned[id(options)] = str(options)
        words: str = self._interned[id(options)]
        return words

    def _options(self, value: ProgramValue, key: Any) -> list[Option]:
        """Return the options of a value; lists of equal values are the same object."""
        if value.name in self.choices:
            return self.choices[value.name]
        if key not in self._interned:
            self._interned[key] = options_of(value, self.setting)
        options: list[Option] = self._interned[key]
        if not self.allowed:
            return options
        places = tuple(
            i for i, o in enumerate(options) if all(allow(value, o) for allow in self.allowed)
        )
        subset: list[Option] = self._interned.setdefault(
            (key, "subset", places), [options[i] for i in places or (0,)]
        )
        return subset

    def _published(self, name: str) -> Face:
        uses = {n: self._uses(self.values[n], name) for n in self.readers[name]}
        key = (id(self.domains[name]), tuple(id(f) for faces in uses.values() for f in faces))
        if key not in self._interned:
            joined = [
                Face(*(np.concatenate(each) for each in zip(*faces, strict=True)))
                for faces in uses.values()
            ]
            self._interned[key] = published_uses(self.domains[name], joined)
        face: Face = self._interned[key]
        return face

    def _uses(self, reader: ProgramValue, name: str) -> list[Face]:
        """Return how `reader` uses the value `name`, one entry per operand."""
        faces = self.domains[reader.name].uses
        return [faces[r.operand] for r in reader.references if r.value == name]

    def variable(self, name: str) -> str:
        """Return the variable that readers of the value `name` depend on."""
        return published(name) if name in self.published else name

    def face(self, name: str) -> Face:
        """Return the layouts that readers of the value `name` find."""
        return self.published.get(name) or self.domains[name].face

    def size(self, variable: str) -> int:
        """Return the number of options of a variable that readers depend on."""
        return len(self.face(variable.removesuffix(" published")).layouts)

    # -- segments ------------------------------------------------------------------------------

    def _segment(self, group: Sequence[ProgramValue]) -> Segment:
        inside = {value.name for value in group}
        names = _Names()
        key = tuple(self._signature(value, names, inside) for value in group)
        if key not in self._kinds:
            self._kinds[key] = self._kind(group, names, inside)
        local = {mine: name for name, mine in names.local.items()}
        return Segment(self._kinds[key], tuple(v.name for v in group), local)

    def _signature(self, value: ProgramValue, names: _Names, inside: set[str]) -> Any:
        """Return what the factors of `value` depend on, with local names."""
        reads = tuple(
            (names[self.variable(n)], id(self.face(n)), id(self.domains[n]), operands)
            for n, operands in _operands(value).items()
        )
        own = (names[value.name], id(self.domains[value.name]))
        several = value.name in self.published
        shared = (names[published(value.name)], id(self.published[value.name])) if several else None
        return reads, own, shared, self._is_boundary(value.name, inside)

    def _is_boundary(self, name: str, inside: set[str]) -> bool:
        return any(reader not in inside for reader in self.readers[name])

    def _kind(self, group: Sequence[ProgramValue], names: _Names, inside: set[str]) -> SegmentKind:
        factors: list[Factor] = []
        for value in group:
            factors += self._factors(value, names, inside)
        outer = {self.variable(n) for v in group for n in _operands(v) if n not in inside}
        outer |= {self.variable(n) for n in inside if self._is_boundary(n, inside)}
        gains = any(not f.is_kept and f.costs[STORED].any() for f in factors)
        keep = tuple(names[n] for n in names.local if n in outer)
        return SegmentKind(factors, keep, self.setting.recomputes and gains)

    def _factors(self, value: ProgramValue, names: _Names, inside: set[str]) -> list[Factor]:
        domain, name = self.domains[value.name], value.name
        # a value that another segment reads is stored; so is its published copy
        is_kept = self._is_boundary(name, inside)
        factors = [Factor((names[name],), domain.costs, is_kept)]
        if name in self.published:
            costs = reading_costs(
                domain, domain.face, self.published[name], self.setting, domain.is_freed
            )
            factors.append(Factor((names[name], names[published(name)]), costs, is_kept))
        for source, operands in _operands(value).items():
            costs = self._reading(source, [domain.uses[o] for o in operands])
            if costs.any():
                factors.append(Factor((names[self.variable(source)], names[name]), costs, False))
        return factors

    def _reading(self, source: str, faces: Sequence[Face]) -> np.ndarray:
        """Return the cost of a node that reads `source` as each of `faces`; equal uses are one."""
        key = (id(self.domains[source]), id(self.face(source)), tuple(id(f) for f in faces))
        if key not in self._interned:
            domain = self.domains[source]
            freed = None if source in self.published else domain.is_freed
            total = np.zeros(())
            for i, face in enumerate(faces):
                costs = reading_costs(domain, self.face(source), face, self.setting, freed)
                again = [_is_same(face, other) for other in faces[:i]]
                total = total + costs * ~np.any(again, axis=0) if again else total + costs
            self._interned[key] = total
        reading: np.ndarray = self._interned[key]
        return reading


class _Names:
    """Local names of variables, in the order in which they are first mentioned."""

    def __init__(self) -> None:
        self.local: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self.local.setdefault(name, f"v{len(self.local)}")


def _operands(value: ProgramValue) -> dict[str, tuple[str, ...]]:
    """Return the operands of a value by the value that they read."""
    operands: dict[str, tuple[str, ...]] = {}
    for reference in value.references:
        operands[reference.value] = (*operands.get(reference.value, ()), reference.operand)
    return operands


def _is_same(one: Face, other: Face) -> np.ndarray:
    same = (one.layouts == other.layouts) & (one.gradients == other.gradients)
    result: np.ndarray = same.all(axis=-1)
    return result


def _segments(problem: PlanningProblem, values: Sequence[ProgramValue]) -> list[list[ProgramValue]]:
    """Divide the values where at most one is live, into segments with something to recompute."""
    last = {n: readers[-1] for n, readers in problem.readers.items() if readers}
    live: set[str] = set()
    groups: list[list[ProgramValue]] = [[]]
    for value in values:
        groups[-1].append(value)
        live |= {value.name} if _can_be_live(problem, value) else set()
        live -= {n for n in _operands(value) if last[n] == value.name}
        if len(live) <= 1 and not value.is_parameter and _is_full(groups[-1]):
            groups.append([])
    if not groups[-1] or not _is_full(groups[-1]):
        tail = groups.pop()
        groups = [*groups[:-1], [*groups[-1], *tail]] if groups else [tail]
    return groups


def _can_be_live(problem: PlanningProblem, value: ProgramValue) -> bool:
    """Return True if the layout of `value` is a choice that its readers depend on."""
    readers = problem.readers[value.name]
    is_choice = len(problem.face(value.name).layouts) > 1
    return is_choice and bool(readers) and not value.is_parameter and len(readers) < MANY_READERS


def _is_full(group: Iterable[ProgramValue]) -> bool:
    """Return True if a segment has a parameter and two values that training stores."""
    group = list(group)
    stored = [v for v in group if not v.is_view and not v.is_fixed and not v.is_parameter]
    return any(v.is_parameter for v in group) and len(stored) > 1
