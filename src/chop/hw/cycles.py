"""Exact cycle counts of a design without a simulator, and the FIFO depths that keep it at speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chop.errors import HardwareError
from chop.hw.control import Wire
from chop.hw.design import Design, Interface, Stage
from chop.hw.rtl.fifo import Fifo
from chop.hw.rtl.stream_fork import ForkTwin
from chop.hw.twin import Queue, Twin, from_record

_FULL = 1 << 24
"""Threshold of the random draw that always succeeds."""


@dataclass(frozen=True)
class Stalls:
    """How often a source offers (`valid`) and a sink takes (`ready`), as probabilities."""

    valid: float = 1.0
    ready: float = 1.0
    seed: int = 1
    inside: float = 1.0
    """How often a stream between two stages lets a beat pass."""
    burst: int = 1
    """Cycles for which each drawn decision holds."""
    resets: int = 0
    """How often the run is begun and cut off by a reset before the run that counts."""

    def thresholds(self) -> tuple[int, int, int]:
        """The probabilities as 24-bit integers."""
        return round(self.valid * _FULL), round(self.ready * _FULL), round(self.inside * _FULL)


NO_STALLS = Stalls()
Times = Sequence[int] | npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Timing:
    """When beats passed the ports of a design, in cycles after reset."""

    inputs: Mapping[str, Times]
    outputs: Mapping[str, Times]

    @property
    def cycles(self) -> int:
        """Cycles until the last beat has left."""
        return 1 + max(int(times[-1]) for times in self.outputs.values())

    def tensor_ends(self, name: str, beats: int) -> list[int]:
        """The cycle in which the last beat of each tensor left by output `name`."""
        return [int(t) for t in self.outputs[name][beats - 1 :: beats]]


class _Draw:
    """The driver's random decisions."""

    def __init__(self, stalls: Stalls, offset: int, threshold: int) -> None:
        self.state = (stalls.seed + offset) & 0xFFFFFFFF
        self.threshold, self.burst = threshold, stalls.burst
        self.left = 0
        self.passes = False

    def next(self) -> bool:
        if not self.left:
            self.left = self.burst
            self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
            self.passes = self.state >> 8 < self.threshold
        self.left -= 1
        return self.passes


def _draws(stalls: Stalls, prime: int, count: int, threshold: int) -> list[_Draw]:
    """Independent decisions for each of `count` streams."""
    return [_Draw(stalls, prime * (k + 1), threshold) for k in range(count)]


class _Part(NamedTuple):
    """A stage as the model sees it."""

    name: str
    sources: Sequence[Wire]
    outputs: int
    twins: list[Twin]


def _parts(design: Design | Interface) -> Iterable[_Part]:
    if isinstance(design, Design):
        for each in design.stages:
            component = each.component
            yield _Part(each.name, each.sources, len(component.outputs), component.twins())
        return
    assert design.control is not None, f"'{design.name}' has twins that files do not keep"
    for stage in design.control.stages:
        twins = [from_record(told) for told in stage.twins]
        yield _Part(stage.name, stage.sources, stage.outputs, twins)


def _output_wires(design: Design | Interface) -> list[Wire]:
    if isinstance(design, Design):
        return list(design.outputs.values())
    assert design.control is not None, f"'{design.name}' has twins that files do not keep"
    return list(design.control.outputs)


class _Model:
    """The twins of a design, flattened to chains, and the edges between them."""

    def __init__(
        self, design: Design | Interface, queues: Mapping[Wire, Twin], gated: Sequence[Wire]
    ) -> None:
        self.names: list[str] = []
        self.chains: list[tuple[Twin, int, int]] = []
        self.joins: list[tuple[Twin, int, int, int]] = []
        self.forks: list[tuple[ForkTwin, int, list[int]]] = []
        self._edges: dict[Wire, int] = {}
        self._queues = queues
        self.gates: list[tuple[int, int, int]] = []
        """Of each gate its place in the caller's list, and the edges before and behind it."""
        self.held = [False] * len(gated)
        self._gated = {wire: k for k, wire in enumerate(gated)}
        self.sources = [self._open(Wire(name)) for name in design.inputs]
        for part in _parts(design):
            self._add_stage(part)
        self.sinks = [self._edges[wire] for wire in _output_wires(design)]

    def _new_edge(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def _open(self, wire: Wire) -> int:
        """A new edge that `wire` starts with."""
        edge = self._new_edge(wire.stage)
        self._close(wire, edge)
        return edge

    def _close(self, wire: Wire, edge: int) -> None:
        """`wire` ends with `edge`, or behind the queue that is asked for there."""
        if wire in self._queues:
            behind = self._new_edge(wire.stage)
            self.chains.append((self._queues[wire], edge, behind))
            edge = behind
        self._edges[wire] = edge

    def _enter(self, wire: Wire) -> int:
        """The edge by which the beats of `wire` reach the stage that takes them."""
        edge = self._edges[wire]
        if wire not in self._gated:
            return edge
        behind = self._new_edge(wire.stage)
        self.gates.append((self._gated[wire], edge, behind))
        return behind

    def _add_stage(self, stage: _Part) -> None:
        edges = [self._enter(wire) for wire in stage.sources]
        chain = stage.twins
        wires = [Wire(stage.name, p) for p in range(stage.outputs)]
        if not chain:  # combinational: one handshake on both sides
            self._close(wires[0], edges[0])
        elif isinstance(chain[0], ForkTwin):
            self.forks.append((chain[0], edges[0], [self._open(w) for w in wires]))
        else:
            self._add_chain(stage.name, chain, edges, wires[0])

    def _add_chain(self, name: str, chain: list[Twin], edges: list[int], wire: Wire) -> None:
        for twin in chain[:-1]:
            inner = self._new_edge(name)
            self.chains.append((twin, edges[0], inner))
            edges = [inner]
        if chain[-1].inputs == 2:
            self.joins.append((chain[-1], edges[0], edges[1], self._open(wire)))
        else:
            self.chains.append((chain[-1], edges[0], self._open(wire)))

    def cycle(self, valid: list[bool], ready: list[bool], passes: list[bool]) -> list[bool]:
        """One cycle of every twin, given the claims of ports and gates; which edges had a beat."""
        self._claim(valid, ready, passes)
        fired = [v and r for v, r in zip(valid, ready, strict=True)]
        for twin, into, out in self.chains:
            twin.step(fired[into], fired[out])
        for fork, into, outs in self.forks:
            fork.step_each(fired[into], [fired[out] for out in outs])
        for twin, left, _, out in self.joins:
            twin.step(fired[left], fired[out])
        for k, _, out in self.gates:  # a beat that was offered stays offered
            self.held[k] = valid[out] and not ready[out]
        return fired

    def _claim(self, valid: list[bool], ready: list[bool], passes: list[bool]) -> None:
        """Who offers and who would take, on every edge."""
        for twin, into, out in self.chains:
            ready[into] = twin.takes
            valid[out] = twin.gives
        for fork, into, outs in self.forks:
            ready[into] = fork.takes
            for gives, out in zip(fork.gives_each, outs, strict=True):
                valid[out] = gives
        for twin, _, _, out in self.joins:
            valid[out] = twin.gives
        for k, into, out in self.gates:
            valid[out] = valid[into] and (passes[k] or self.held[k])
        for twin, left, right, _ in self.joins:
            ready[left] = twin.takes and valid[right]
            ready[right] = twin.takes and valid[left]
        for k, into, out in reversed(self.gates):
            ready[into] = ready[out] and (passes[k] or self.held[k])


def simulate_control(
    design: Design | Interface,
    tensors: int = 1,
    stalls: Stalls = NO_STALLS,
    queues: Mapping[Wire, Twin] | None = None,
    gated: Sequence[Wire] = (),
    limit: int | None = None,
) -> Timing:
    """Exact times of every beat at the ports while `tensors` tensors pass; raises on deadlock.

    `queues` puts further queues on wires, to try FIFO depths without changing the design. `gated`
    are the wires inside the design that `stalls` holds up. After `limit` cycles the model stops,
    and tells the beats until then.
    """
    if isinstance(design, Design):
        outputs, cycles = design.output_streams(), design.cycles()
    else:
        outputs, cycles = dict(design.outputs), design.cycles
    wanted_in = [tensors * s.beats for s in design.inputs.values()]
    wanted_out = [tensors * s.beats for s in outputs.values()]
    run = _Run(_Model(design, queues or {}, gated), stalls, wanted_in, wanted_out)
    patient = patience(cycles, stalls)
    while not run.is_done() and (limit is None or run.cycle < limit):
        run.step()
        if run.quiet > patient:
            raise HardwareError(run.deadlock(design.name))
    return Timing(
        dict(zip(design.inputs, run.times_in, strict=True)),
        dict(zip(outputs, run.times_out, strict=True)),
    )


class _Run:
    """The model between the driver's sources and sinks."""

    def __init__(
        self, model: _Model, stalls: Stalls, wanted_in: list[int], wanted_out: list[int]
    ) -> None:
        valid, ready, inside = stalls.thresholds()
        self.model = model
        self.wanted_in, self.wanted_out = wanted_in, wanted_out
        self.draw_in = _draws(stalls, 7919, len(wanted_in), valid)
        self.draw_out = _draws(stalls, 104729, len(wanted_out), ready)
        self.draw_gate = _draws(stalls, 1299709, len(model.held), inside)
        self.times_in: list[list[int]] = [[] for _ in wanted_in]
        self.times_out: list[list[int]] = [[] for _ in wanted_out]
        self.offering = [False] * len(wanted_in)
        self.valid, self.ready = [False] * len(model.names), [False] * len(model.names)
        self.cycle = self.quiet = 0

    def is_done(self) -> bool:
        """Whether every beat has left."""
        pairs = zip(self.times_out, self.wanted_out, strict=True)
        return all(len(times) >= count for times, count in pairs)

    def step(self) -> None:
        """One cycle."""
        for k, edge in enumerate(self.model.sources):
            if not self.offering[k]:
                has_more = len(self.times_in[k]) < self.wanted_in[k]
                self.offering[k] = self.draw_in[k].next() and has_more
            self.valid[edge] = self.offering[k]
        for k, edge in enumerate(self.model.sinks):
            self.ready[edge] = self.draw_out[k].next()
        passes = [draw.next() for draw in self.draw_gate]
        fired = self.model.cycle(self.valid, self.ready, passes)
        for k, edge in enumerate(self.model.sources):
            if fired[edge]:
                self.times_in[k].append(self.cycle)
                self.offering[k] = False
        for k, edge in enumerate(self.model.sinks):
            if fired[edge]:
                self.times_out[k].append(self.cycle)
        self.quiet = 0 if any(fired) else self.quiet + 1
        self.cycle += 1

    def deadlock(self, name: str) -> str:
        """Where the beats are stuck."""
        claims = zip(self.model.names, self.valid, self.ready, strict=True)
        blocked = [edge for edge, v, r in claims if v and not r]
        return (
            f"design '{name}' deadlocks in cycle {self.cycle - 1 - self.quiet}: beats wait behind "
            f"{', '.join(dict.fromkeys(blocked)) or 'nothing'}. "
            f"Forks need deeper FIFOs behind them."
        )


def patience(cycles: int, stalls: Stalls) -> int:
    """Cycles without a beat after which a design of that folding bound will not move any more."""
    rate = min(stalls.valid, stalls.ready, stalls.inside)
    return int((200 + 2 * cycles + 20 * (stalls.burst - 1)) / rate)


def interval(design: Design, queues: Mapping[Wire, Twin] | None = None) -> float:
    """Cycles between tensors in the steady state; infinite for a design that deadlocks."""
    tensors = 4
    try:
        timing = simulate_control(design, tensors, queues=queues)
    except HardwareError:
        return float("inf")
    ends = [
        timing.tensor_ends(name, stream.beats) for name, stream in design.output_streams().items()
    ]
    return max((e[-1] - e[1]) / (tensors - 2) for e in ends)


_DEEP = 1 << 30


def size_fifos(design: Design) -> dict[Wire, int]:
    """Least FIFO depths, by wire, that bring the design to its best interval.

    Tries the design as it is; then deep FIFOs behind the forks, then on every wire, until the
    folding bound is reached; drops those that are not needed and shrinks the rest in turn.
    """
    bound = design.cycles()
    for wires in ([], *_candidates(design)):
        best = interval(design, _queues(dict.fromkeys(wires, _DEEP)))
        if best <= bound:
            break
    depths = dict.fromkeys(wires, _DEEP)
    for wire in reversed(wires):  # the FIFO nearest to the fork is the one to keep
        fewer = {w: d for w, d in depths.items() if w != wire}
        if _holds(design, fewer, best):
            depths = fewer
    for wire in list(depths):
        depths[wire] = _least_depth(design, depths, wire, best)
    return depths


def _candidates(design: Design) -> tuple[list[Wire], list[Wire]]:
    """Wires where a FIFO may help: behind the forks, and all inside the design."""
    forks, wires = [], []
    for stage in design.stages:
        ends = [Wire(stage.name, p) for p in range(len(stage.component.outputs))]
        inside = [w for w in ends if w not in design.outputs.values()]
        wires += inside
        forks += inside if len(ends) > 1 else []
    return forks, wires


def _least_depth(design: Design, depths: Mapping[Wire, int], wire: Wire, best: float) -> int:
    queues = _queues(depths)
    interval(design, queues)
    deep = queues[wire]
    assert isinstance(deep, Queue), "queues are asked for as queues"
    low, high = 0, max(deep.high_water, 1)
    if not _holds(design, {**depths, wire: high}, best):  # a source that runs ahead fills any FIFO
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if _holds(design, {**depths, wire: middle}, best):
            high = middle
        else:
            low = middle
    return high


def _holds(design: Design, depths: Mapping[Wire, int], best: float) -> bool:
    return interval(design, _queues(depths)) <= best


def _queues(depths: Mapping[Wire, int]) -> dict[Wire, Twin]:
    return {wire: Queue(depth) for wire, depth in depths.items()}


def with_fifos(design: Design, depths: Mapping[Wire, int]) -> Design:
    """`design` with a FIFO of the given depth behind each wire."""
    stages: list[Stage] = []
    moved: dict[Wire, Wire] = {}

    def place(wires: list[Wire], stream_of: Callable[[Wire], object]) -> None:
        for wire in wires:
            if wire in depths:
                suffix = f"_{wire.port}" if wire.port else ""
                name = f"{wire.stage}_fifo{suffix}"
                fifo = Fifo(stream_of(wire), depths[wire])  # type: ignore[arg-type]
                stages.append(Stage(name, fifo, (wire,)))
                moved[wire] = Wire(name)

    place([Wire(name) for name in design.inputs], design.stream)
    for stage in design.stages:
        stages.append(replace(stage, sources=tuple(moved.get(w, w) for w in stage.sources)))
        place([Wire(stage.name, p) for p in range(len(stage.component.outputs))], design.stream)
    outputs = {name: moved.get(wire, wire) for name, wire in design.outputs.items()}
    sized = replace(design, stages=tuple(stages), outputs=outputs)
    sized.check()
    return sized


def balanced(design: Design) -> Design:
    """`design` with the FIFOs it needs to run at its best interval and never deadlock."""
    return with_fifos(design, size_fifos(design))
