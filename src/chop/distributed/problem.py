"""The planning problem: one variable per value, cost tables, and segments that repeat.

A variable has the options of a value (`chop.distributed.domains`). A value with several readers has
a second variable: the layout in which it is published to them, paid for once. The tables are the
cost of each option, and the cost to read a value, which depends on both sides.

The values are divided into segments where only one value is live. Segments of the same structure
share their tables and their elimination. They are not forced to have the same options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from chop.distributed.conversions import shares
from chop.distributed.domains import (
    AGAIN,
    AGAIN_TALK,
    ARITHMETIC,
    ENTERING,
    HIDDEN,
    HIDDEN_STEP,
    MOMENT,
    PARTS,
    STATIC,
    STEP,
    STORED,
    TALK,
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
    add,
    best_assignment,
    eliminate,
    elimination_order,
)
from chop.distributed.program import Program, ProgramValue, is_found_stored, is_held
from chop.distributed.segments import entering, operands_by_source, segments_of

RECOMPUTE = "recompute"
"""Variable of a segment: 0 stores its activations, 1 recomputes them in backward."""
FORBIDDEN = 1e12
"""Seconds of what is not allowed; finite, so that differences stay numbers."""


class Twist(NamedTuple):
    """Prices that make the objective of a segment a sum; any choice is a lower bound.

    `arithmetic`: share of the arithmetic in a segment's time. Arithmetic and communication that
    overlap take max(a, h) seconds, which is at least s a + (1 − s) h for every share s.
    `moment`: seconds per byte that a recomputed segment needs above the cap, and earns below it.
    """

    arithmetic: float
    moment: float = 0.0


class PartWeights(NamedTuple):
    """Weights of the parts of a cost in the objective.

    `rate`: seconds per byte. `micro_batches`: per step. `in_flight`: micro-batches whose
    activations are stored at the same time. `cap`: most bytes for a moment. `overlaps`: some
    communication overlaps with arithmetic.
    """

    rate: float
    micro_batches: int = 1
    in_flight: int = 1
    cap: float = np.inf
    overlaps: bool = False

    def of(self, twist: Twist, *, recomputes: bool) -> np.ndarray:
        """Return one weight per part."""
        arithmetic, hidden = 1.0, 1.0
        if self.overlaps:
            arithmetic, hidden = twist.arithmetic, 1.0 - twist.arithmetic
        count = self.micro_batches
        weights = np.zeros(PARTS)
        weights[[ARITHMETIC, TALK, STEP, STATIC]] = arithmetic * count, count, 1.0, self.rate
        weights[[HIDDEN, HIDDEN_STEP]] = hidden * count, hidden
        weights[STORED] = twist.moment if recomputes else self.rate * self.in_flight
        if recomputes:
            weights[[AGAIN, AGAIN_TALK]] = arithmetic * count, count
            weights[ENTERING] = self.rate * self.in_flight
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
    _solved: dict[Any, Elimination] = field(default_factory=dict)
    _lowered: dict[Any, LoweredSegment] = field(default_factory=dict)
    _decoded: dict[Any, tuple[dict[str, int], np.ndarray]] = field(default_factory=dict)

    @cached_property
    def moments(self) -> np.ndarray:
        """Bytes for a moment that some option needs, sorted."""
        return np.unique(np.concatenate([f.costs[MOMENT].ravel() for f in self.factors]))

    def eliminate(self, weights: PartWeights, twist: Twist) -> Elimination:
        """Eliminate all variables but `keep` and `RECOMPUTE`; cached.

        Without what a twist earns below the cap, so that caps that allow the same options share it.
        """
        level = int(np.searchsorted(self.moments, weights.cap, side="right"))
        key = (*weights[:3], weights.overlaps, level, twist)
        if key not in self._solved:
            self._solved[key] = self._eliminated(self._tables(weights, twist))
        return self._solved[key]

    def _eliminated(self, tables: list[CostTable]) -> Elimination:
        if not self._order:
            self._order = elimination_order(tables, (*self.keep, RECOMPUTE))
        return eliminate(tables, self._order)

    @cached_property
    def least_again(self) -> CostTable:
        """Fewest bytes for a moment with which the segment can be recomputed."""
        tables = [
            CostTable(f.scope, np.zeros_like(f.costs[STORED]) if f.is_kept else f.costs[STORED])
            for f in self.factors
        ]
        return self._eliminated(tables).rest

    def lowered(self, weights: PartWeights, twists: tuple[Twist, ...]) -> LoweredSegment:
        """Return the highest of the lower bounds by `twists`; cached."""
        key = (weights, twists)
        if key not in self._lowered:
            self._lowered[key] = _lowered(self, weights, twists)
        return self._lowered[key]

    def _tables(self, weights: PartWeights, twist: Twist) -> list[CostTable]:
        stored = weights.of(twist, recomputes=False)
        both = np.stack([stored, weights.of(twist, recomputes=True)])
        has_limit = len(self.moments) and self.moments[-1] > weights.cap
        tables = []
        for factor in self.factors:
            is_both = self.can_recompute and not factor.is_kept
            costs = np.tensordot(both if is_both else stored, factor.costs, 1)
            if has_limit:
                costs += np.where(factor.costs[MOMENT] > weights.cap, FORBIDDEN, 0.0)
            scope = (RECOMPUTE, *factor.scope) if is_both else factor.scope
            tables.append(CostTable(scope, costs))
        return tables

    def decode(
        self, weights: PartWeights, twist: Twist, outer: Mapping[str, int]
    ) -> tuple[dict[str, int], np.ndarray]:
        """Return the best values given those of `outer`, and their cost by part; cached."""
        key = (weights, twist, *outer.items())
        if key not in self._decoded:
            values = best_assignment(self.eliminate(weights, twist).steps, outer)
            self._decoded[key] = values, self.parts(values)
        return self._decoded[key]

    def parts(self, values: Mapping[str, int]) -> np.ndarray:
        """Return the cost of an assignment by part, as it is paid.

        `MOMENT` is the larger of the largest gathered copy and what is recomputed.
        """
        total = np.zeros(PARTS)
        is_again = bool(values.get(RECOMPUTE, 0))
        again = gathered = 0.0
        for factor in self.factors:
            place: tuple[Any, ...] = (slice(None), *(values[n] for n in factor.scope))
            costs = factor.costs[place]
            gathered = max(gathered, float(costs[MOMENT]))
            total += costs
            if factor.is_kept or not is_again:
                total[[AGAIN, AGAIN_TALK, ENTERING]] -= costs[[AGAIN, AGAIN_TALK, ENTERING]]
            else:
                total[STORED] -= costs[STORED]
                again += float(costs[STORED])
        total[MOMENT] = max(gathered, again)
        total[STORED] += total[ENTERING]
        total[ENTERING] = 0.0
        return total


@dataclass(frozen=True, eq=False)
class LoweredSegment:
    """Lower bound of the cost of a segment, for each option of the variables that it keeps.

    `again`: whether the bound recomputes the segment. `twist`: index of the highest bound, stored
    and recomputed.
    """

    kind: SegmentKind
    weights: PartWeights
    twists: tuple[Twist, ...]
    table: CostTable
    again: np.ndarray
    twist: np.ndarray

    def decode(self, outer: Mapping[str, int]) -> tuple[dict[str, int], np.ndarray, Twist]:
        """Return an assignment at the bound, its cost by part, and the twist that it is from."""
        place = tuple(outer[name] for name in self.table.scope)
        again = int(self.again[place])
        twist = self.twists[int(self.twist[(again, *place)])]
        fixed = {name: outer[name] for name in self.table.scope}
        if self.kind.can_recompute:
            fixed[RECOMPUTE] = again
        return *self.kind.decode(self.weights, twist, fixed), twist


def _lowered(kind: SegmentKind, weights: PartWeights, twists: tuple[Twist, ...]) -> LoweredSegment:
    rests = [kind.eliminate(weights, twist).rest for twist in twists]
    scope = tuple(name for name in rests[0].scope if name != RECOMPUTE)
    first = (RECOMPUTE, *scope) if kind.can_recompute else scope
    costs = np.stack([add([rest], first) for rest in rests])
    if not kind.can_recompute:
        costs = costs[:, None]
    elif np.isfinite(weights.cap):
        costs[:, 1] -= _column([twist.moment for twist in twists], costs) * weights.cap
        costs[:, 1] += np.where(add([kind.least_again], scope) > weights.cap, FORBIDDEN, 0.0)
    highest = costs.max(axis=0)
    table = CostTable(scope, highest.min(axis=0))
    return LoweredSegment(
        kind, weights, twists, table, highest.argmin(axis=0), costs.argmax(axis=0)
    )


def _column(values: Sequence[float], costs: np.ndarray) -> np.ndarray:
    """Return one value per bound, to add to the recomputed half of `costs`."""
    return np.array(values).reshape(-1, *[1] * (costs.ndim - 2))


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
        self.readers, self.saved = program.readers(), program.saved()
        self.values = {value.name: value for value in program.values}
        self._interned: dict[Any, Any] = {}
        self.domains = {v.name: self._domain(v) for v in program.values}
        self.published = {
            name: self._published(name)
            for name, readers in self.readers.items()
            if len(readers) > 1 and not self.values[name].is_fixed
        }
        self._kinds: dict[Any, SegmentKind] = {}
        self.segments = [self._segment(group) for group in segments_of(program)]

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
            (
                names[self.variable(n)],
                id(self.face(n)),
                id(self.domains[n]),
                operands,
                self._held(n),
            )
            for n, operands in operands_by_source(value).items()
        )
        own = (names[value.name], id(self.domains[value.name]))
        several = value.name in self.published
        shared = (names[published(value.name)], id(self.published[value.name])) if several else None
        return reads, own, shared, self._held(value.name), self._is_boundary(value.name, inside)

    def _held(self, name: str) -> tuple[bool, bool]:
        """Return whether a reader stores the value, and whether its readers find it stored."""
        value, is_saved = self.values[name], name in self.saved
        return is_saved, is_found_stored(value, is_saved, name in self.published)

    def _is_kept(self, name: str, inside: set[str]) -> bool:
        """Return True if a value stays even if its segment is recomputed: others need it."""
        return not self.readers[name] or self._is_boundary(name, inside)

    def _is_boundary(self, name: str, inside: set[str]) -> bool:
        return any(reader not in inside for reader in self.readers[name])

    def _kind(self, group: Sequence[ProgramValue], names: _Names, inside: set[str]) -> SegmentKind:
        factors: list[Factor] = []
        for value in group:
            factors += self._factors(value, names, inside)
        factors += self._entering(group, names)
        outer = {self.variable(n) for v in group for n in operands_by_source(v) if n not in inside}
        outer |= {self.variable(n) for n in inside if self._is_boundary(n, inside)}
        gains = any(not f.is_kept and f.costs[STORED].any() for f in factors)
        keep = tuple(names[n] for n in names.local if n in outer)
        return SegmentKind(factors, keep, self.setting.recomputes and gains)

    def _factors(self, value: ProgramValue, names: _Names, inside: set[str]) -> list[Factor]:
        domain, name = self.domains[value.name], value.name
        # a value that another segment reads is stored; so is its published copy
        is_kept = self._is_kept(name, inside)
        factors = [Factor((names[name],), domain.costs, is_kept)]
        if domain.inner.any():
            factors.append(Factor((names[name],), domain.inner, False))
        if name in self.published:
            costs = reading_costs(
                domain,
                domain.face,
                self.published[name],
                self.setting,
                domain.is_freed,
                is_saved=name in self.saved,
                is_held=is_held(value),
            )
            factors.append(Factor((names[name], names[published(name)]), costs, is_kept))
        for source, operands in operands_by_source(value).items():
            costs = self._reading(source, [domain.uses[o] for o in operands], value.saves(source))
            if costs.any():  # a view that another segment reads needs the storage of its source
                is_view = is_kept and value.saved.is_alias
                scope = (names[self.variable(source)], names[name])
                factors.append(Factor(scope, costs, is_view))
        return factors

    def _entering(self, group: Sequence[ProgramValue], names: _Names) -> list[Factor]:
        """Return the bytes that a segment reads, and that only its recomputation stores."""
        factors: list[Factor] = []
        if not (self.setting.training and self.setting.recomputes):
            return factors
        for source in entering(group):
            value = self.values[source]
            if not value.is_parameter and not self._held(source)[1]:
                costs = np.zeros((PARTS, self.size(self.variable(source))))
                share = shares(self.face(source).layouts, self.setting.mesh)
                costs[ENTERING] = value.size * share
                factors.append(Factor((names[self.variable(source)],), costs, False))
        return factors

    def _reading(self, source: str, faces: Sequence[Face], is_saved: bool) -> np.ndarray:
        """Return the cost of a node that reads `source` as each of `faces`; equal uses are one.

        `is_saved`: training stores what is read.
        """
        is_stored = source in self.published or is_held(self.values[source])
        places = id(self.domains[source]), id(self.face(source)), tuple(id(f) for f in faces)
        key = (*places, is_saved, is_stored)
        if key not in self._interned:
            domain = self.domains[source]
            freed = None if source in self.published else domain.is_freed
            total = np.zeros(())
            for i, face in enumerate(faces):
                costs = reading_costs(
                    domain,
                    self.face(source),
                    face,
                    self.setting,
                    freed,
                    is_saved=is_saved,
                    is_held=is_stored,
                )
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


def _is_same(one: Face, other: Face) -> np.ndarray:
    same = (one.layouts == other.layouts) & (one.gradients == other.gradients)
    result: np.ndarray = same.all(axis=-1)
    return result
