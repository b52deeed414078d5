"""Cost of one plan, value by value, with every collective.

This is the definition of the cost. The planner computes the same numbers for all options at once
(`chop.distributed.domains`); tests compare both.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chop.distributed.conversions import Collective, Tensors, collectives_of, encode
from chop.distributed.cost import TRAINING_COPIES, TRAINING_WORK, compute_seconds
from chop.distributed.layouts import REPLICATE, Layout, Use, gradient_of, sharded_dim
from chop.distributed.mesh import Mesh
from chop.distributed.program import Program, ProgramValue, is_found_stored, is_held
from chop.distributed.saved_tensors import inner_layouts
from chop.distributed.segments import entering, segments_of
from chop.distributed.strategies import Strategy

Option = tuple[Strategy, ...]
Uses = tuple[Use, ...]


@dataclass(frozen=True)
class Talk:
    """One collective of a step, with its value and mesh axis; `sent`: bytes per device.

    `can_overlap`: it gathers a parameter or reduces its gradient, so no arithmetic waits for it.
    `reader`: node for which the value is converted; the value itself if it is for all readers.
    `is_once`: it runs once per step, however many micro-batches the step has.
    """

    value: str
    axis: int
    collective: str
    seconds: float
    sent: float = 0.0
    can_overlap: bool = False
    reader: str = ""
    is_once: bool = False


@dataclass(frozen=True)
class Cost:
    """Modelled cost of a step on each device.

    `memory_bytes` is the sum of parameters, gradients and optimizer state (`state_bytes`), stored
    activations and gathered copies (`activation_bytes`), and what is alive for a moment only
    (`transient_bytes`). `hidden_seconds`: communication that overlaps with arithmetic.
    """

    compute_seconds: float
    parameter_bytes: int
    memory_bytes: int
    talks: tuple[Talk, ...]
    state_bytes: int = 0
    activation_bytes: int = 0
    transient_bytes: int = 0
    hidden_seconds: float = 0.0

    @property
    def communication_seconds(self) -> float:
        """Time of all collectives."""
        return sum(talk.seconds for talk in self.talks)

    @property
    def sent_bytes(self) -> float:
        """Bytes that each device sends."""
        return sum(talk.sent for talk in self.talks)

    @property
    def collectives(self) -> dict[str, int]:
        """Calls of each collective."""
        return dict(sorted(Counter(talk.collective for talk in self.talks).items()))

    @property
    def step_seconds(self) -> float:
        """Time of arithmetic plus communication, less what overlaps."""
        return self.compute_seconds + self.communication_seconds - self.hidden_seconds

    def record(self) -> dict[str, Any]:
        """Return plain data: the sums, and every collective."""
        names = ["step_seconds", "compute_seconds", "communication_seconds", "hidden_seconds"]
        names += ["sent_bytes"]
        names += ["parameter_bytes", "state_bytes", "activation_bytes", "transient_bytes"]
        names += ["memory_bytes", "collectives"]
        sums = {name: getattr(self, name) for name in names}
        return sums | {"talks": [asdict(talk) for talk in self.talks]}


@dataclass(frozen=True)
class Decisions:
    """Option of each value, layouts in which values are published, and recomputed segments.

    A value that is not in `published` is read in the layout in which it was computed. Each
    recomputed segment is the names of its values.
    """

    options: Mapping[str, Option]
    published: Mapping[str, Uses]
    recomputed: Sequence[Sequence[str]] = ()

    def own(self, name: str) -> Uses:
        """Return the layouts of a value as computed, and of the gradient that it needs."""
        return tuple(Use(s.result, s.state or gradient_of(s.result)) for s in self.options[name])

    def source(self, name: str) -> Uses:
        """Return the layouts in which readers find a value."""
        return self.published.get(name) or self.own(name)


def price_decisions(program: Program, mesh: Mesh, decisions: Decisions, *, training: bool) -> Cost:
    """Return the cost of a step by `decisions`."""
    return _Pricer(program, mesh, decisions, training).cost()


class _Pricer:
    """Sum of the costs of all values."""

    def __init__(self, program: Program, mesh: Mesh, decisions: Decisions, training: bool) -> None:
        self.program, self.mesh, self.decisions, self.training = program, mesh, decisions, training
        self.values = {value.name: value for value in program.values}
        self.readers, self.saved = program.readers(), program.saved()
        groups = [frozenset(names) for names in decisions.recomputed]
        self.segment = {name: group for group in groups for name in group}
        segments = segments_of(program)
        self.window = {v.name: i for i, segment in enumerate(segments) for v in segment}
        self.talks: list[Talk] = []
        self.compute = [0.0] * len(segments)
        self.hidden = [0.0] * len(segments)
        self.parameters = self.states = self.activations = 0.0
        self.gathered = 0.0
        self.dropped: dict[int, float] = defaultdict(float)

    def cost(self) -> Cost:
        for value in self.program.values:
            self._add(value)
        if self.training:
            self._add_entering()
        transient = max([self.gathered, *self.dropped.values()])
        transient += 0 if self.training else self._peak()
        total = self.parameters + self.states + self.activations + transient
        return Cost(
            compute_seconds=sum(self.compute),
            parameter_bytes=round(self.parameters),
            memory_bytes=round(total),
            talks=tuple(self.talks),
            state_bytes=round(self.states),
            activation_bytes=round(self.activations),
            transient_bytes=round(transient),
            hidden_seconds=self._hidden() if self.mesh.overlaps else 0.0,
        )

    def _hidden(self) -> float:
        """Return the time of communication behind the arithmetic of its segment."""
        return sum(min(pair) for pair in zip(self.compute, self.hidden, strict=True))

    def _add(self, value: ProgramValue) -> None:
        option, own = self.decisions.options[value.name], self.decisions.own(value.name)
        local = value.size * _share([use.layout for use in own], self.mesh)
        if value.is_parameter:
            self._add_parameter(value, own, local)
        else:
            seconds = _forward_seconds(value, option, self.mesh, local)
            has_backward = self.training and value.has_gradient
            is_again = self._is_recomputed(value.name)
            times = (TRAINING_WORK if has_backward else 1) + is_again
            self.compute[self.window[value.name]] += seconds * times
            if self.training:
                self._store_own(value, option, local, is_again)
        if self._is_published(value):
            target = self.decisions.source(value.name)
            is_again = self._is_recomputed(value.name)
            self._convert(value, own, target, value.name, is_again)
            self._store_read(value, own, target, value.name, is_again, is_for_all=True)
        pairs = dict.fromkeys(
            (r.value, tuple(s.use(r.operand) for s in option)) for r in value.references
        )
        for name, uses in pairs:
            source, before = self.values[name], self.decisions.source(name)
            is_again = value.name in self.segment and not source.is_parameter
            # a view that another segment reads needs the storage of its source
            is_again &= not value.saved.is_alias or self._is_recomputed(value.name)
            self._convert(source, before, uses, value.name, is_again)
            self._store_read(source, before, uses, value.name, is_again)

    def _is_published(self, value: ProgramValue) -> bool:
        """Return True if a value has one layout for all of its readers."""
        return len(self.readers[value.name]) > 1 and not value.is_fixed

    def _is_recomputed(self, name: str) -> bool:
        """Return True if the value is not stored: its segment is recomputed and it stays inside."""
        inside, readers = self.segment.get(name), self.readers[name]
        if inside is None or self.values[name].is_parameter:
            return False
        return bool(readers) and inside.issuperset(readers)

    # -- what training stores ------------------------------------------------------------------

    def _store(self, name: str, size: float, is_again: bool) -> None:
        if is_again:
            self.dropped[id(self.segment[name])] += size
        else:
            self.activations += size

    def _store_own(self, value: ProgramValue, option: Option, local: float, is_again: bool) -> None:
        """Add the result of a node if the node stores it, and what it makes for backward."""
        if value.saved.holds_result:
            self._store(value.name, local, is_again)
        for part in value.inner:
            size = part.size * _share(inner_layouts(part, option), self.mesh)
            self._store(value.name, size, value.name in self.segment)

    def _store_read(
        self,
        source: ProgramValue,
        before: Uses,
        after: Uses,
        reader: str,
        is_again: bool,
        *,
        is_for_all: bool = False,
    ) -> None:
        """Add the bytes that are stored because a value is read: its own, or those of a copy.

        `is_for_all`: the copy is for all readers.
        """
        layouts = [use.layout for use in before], [use.layout for use in after]
        is_copied = layouts[0] != layouts[1]
        if not self.training or (source.is_parameter and not is_copied):
            return
        if source.is_parameter:
            size = source.size * _share(layouts[1], self.mesh)
            if self._is_freed(source, reader):
                self.gathered = max(self.gathered, size)
            else:
                self.activations += size
            return
        name = source.name
        is_saved = name in self.saved if is_for_all else self.values[reader].saves(name)
        is_found = is_held(source) or (self._is_published(source) and not is_for_all)
        if is_saved and (is_copied or not is_found):
            self._store(reader, source.size * _share(layouts[is_copied], self.mesh), is_again)

    def _add_entering(self) -> None:
        """Add the values that recomputed segments read, if nothing else stores them."""
        for names in self.decisions.recomputed:
            for name in entering(self.values[each] for each in names):
                value = self.values[name]
                is_stored = is_found_stored(value, name in self.saved, self._is_published(value))
                if not value.is_parameter and not is_stored:
                    layouts = [use.layout for use in self.decisions.source(name)]
                    self.activations += value.size * _share(layouts, self.mesh)

    def _add_parameter(self, value: ProgramValue, own: Uses, local: float) -> None:
        self.parameters += local
        if not (self.training and value.has_gradient):
            return
        states = value.size * _share([use.gradient for use in own], self.mesh)
        self.states += (TRAINING_COPIES - 1) * states
        gradients = [use.gradient for use in own]
        self._talk(value, gradients, [use.layout for use in own], value.name, is_once=True)

    def _convert(
        self, source: ProgramValue, before: Uses, after: Uses, reader: str, is_again: bool
    ) -> None:
        """Add the conversion of a value for `reader`, and of its gradient."""
        layouts = [use.layout for use in before], [use.layout for use in after]
        is_freed = self._is_freed(source, reader)
        window = self.window[reader] if source.is_parameter else None
        is_once = source.is_parameter and not is_freed
        for _ in range(2 if is_again or is_freed else 1):
            self._talk(source, *layouts, reader, window, is_once=is_once)
        if self.training and source.has_gradient:
            gradients = [u.gradient for u in after], [u.gradient for u in before]
            # a gradient that is stored in parts has no whole sum over micro-batches
            is_once = source.is_parameter and not any(map(_is_split, gradients[1]))
            self._talk(source, *gradients, reader, window, is_once=is_once)

    def _is_freed(self, source: ProgramValue, reader: str) -> bool:
        """Return True if the copy of a parameter for `reader` is freed after forward."""
        is_direct = source.name == reader or source.name not in self.decisions.published
        return is_direct and any(s.is_freed for s in self.decisions.options[source.name])

    def _talk(
        self,
        value: ProgramValue,
        before: Sequence[Layout],
        after: Sequence[Layout],
        reader: str,
        window: int | None = None,
        *,
        is_once: bool,
    ) -> None:
        """Add a conversion; `window`: the segment whose arithmetic it can overlap with."""
        tensors = Tensors(value.size, max(1, len(value.call.results)))
        calls = _collectives(tuple(before), tuple(after), tensors, self.mesh)
        facts: Any = {"can_overlap": window is not None, "reader": reader, "is_once": is_once}
        for c in calls:
            self.talks.append(Talk(value.name, c.axis, c.name, c.seconds, c.sent, **facts))
            if window is not None:
                self.hidden[window] += c.seconds

    def _peak(self) -> int:
        """Return the largest number of bytes of activations alive at once on one device."""
        ends: dict[str, list[str]] = {}
        for name, readers in self.readers.items():
            ends.setdefault(readers[-1] if readers else name, []).append(name)
        alive: dict[str, float] = {}
        now = peak = 0.0
        for value in self.program.values:
            is_own = not value.is_parameter and not value.is_view
            layouts = [s.result for s in self.decisions.options[value.name]]
            alive[value.name] = value.size * _share(layouts, self.mesh) if is_own else 0.0
            now += alive[value.name]
            peak = max(peak, now)
            now -= sum(alive[name] for name in ends.get(value.name, ()))
        return round(peak)


@functools.lru_cache(maxsize=10_000)
def _collectives(
    before: tuple[Layout, ...], after: tuple[Layout, ...], tensors: Tensors, mesh: Mesh
) -> list[Collective]:
    if before == after:
        return []
    return collectives_of(encode([before]), encode([after]), tensors, mesh)


def _is_split(layout: Layout) -> bool:
    return sharded_dim(layout) is not None


def _share(layouts: Iterable[Layout], mesh: Mesh) -> float:
    """Return the part of a tensor on one device."""
    share = 1.0
    for layout, devices in zip(layouts, mesh.shape, strict=True):
        share /= devices if _is_split(layout) else 1
    return share


def _forward_seconds(value: ProgramValue, option: Option, mesh: Mesh, local: float) -> float:
    if value.is_view or not value.references or not value.call.results:
        return 0.0
    moved = local
    if value.op.reads_rows:  # it reads only the rows of its table that it returns
        moved *= 2
    else:
        for name, size in value.operand_bytes().items():
            moved += size * _share([s.operands.get(name, REPLICATE) for s in option], mesh)
    work = float(value.flops())
    for strategy, devices in zip(option, mesh.shape, strict=True):
        work /= devices if strategy.is_split else 1
    return compute_seconds(work, moved, mesh, training=False)
