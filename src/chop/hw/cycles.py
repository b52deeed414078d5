"""Exact cycle counts of a design without a simulator, and the FIFO depths that keep it at speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chop.errors import HardwareError
from chop.hw.components.plumbing import Fifo
from chop.hw.design import Design, Stage, Wire
from chop.hw.twin import Fork, Queue, Twin

_FULL = 1 << 24
"""Threshold of the random draw that always succeeds."""


@dataclass(frozen=True)
class Stalls:
    """How often a source offers (`valid`) and a sink takes (`ready`), as probabilities."""

    valid: float = 1.0
    ready: float = 1.0
    seed: int = 1

    def thresholds(self) -> tuple[int, int]:
        """The probabilities as 24-bit integers."""
        return round(self.valid * _FULL), round(self.ready * _FULL)


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
    """The driver's random numbers."""

    def __init__(self, seed: int) -> None:
        self.state = seed & 0xFFFFFFFF

    def below(self, threshold: int) -> bool:
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
        return self.state >> 8 < threshold


class _Model:
    """The twins of a design, flattened to chains, and the edges between them."""

    def __init__(self, design: Design, queues: Mapping[Wire, Twin]) -> None:
        self.names: list[str] = []
        self.chains: list[tuple[Twin, int, int]] = []
        self.joins: list[tuple[Twin, int, int, int]] = []
        self.forks: list[tuple[Fork, int, list[int]]] = []
        self._edges: dict[Wire, int] = {}
        self._queues = queues
        self.sources = [self._open(Wire(name)) for name in design.inputs]
        for stage in design.stages:
            self._add_stage(stage)
        self.sinks = [self._edges[wire] for wire in design.outputs.values()]

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

    def _add_stage(self, stage: Stage) -> None:
        edges = [self._edges[wire] for wire in stage.sources]
        chain = stage.component.twins()
        wires = [Wire(stage.name, p) for p in range(len(stage.component.outputs))]
        if not chain:  # combinational: one handshake on both sides
            self._close(wires[0], edges[0])
        elif isinstance(chain[0], Fork):
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

    def cycle(self, valid: list[bool], ready: list[bool]) -> list[bool]:
        """One cycle of every twin, given the ports' claims; which edges carried a beat."""
        for twin, into, out in self.chains:
            ready[into] = twin.takes
            valid[out] = twin.gives
        for fork, into, outs in self.forks:
            ready[into] = fork.takes
            for gives, out in zip(fork.gives_each, outs, strict=True):
                valid[out] = gives
        for twin, _, _, out in self.joins:
            valid[out] = twin.gives
        for twin, left, right, _ in self.joins:
            ready[left] = twin.takes and valid[right]
            ready[right] = twin.takes and valid[left]
        fired = [v and r for v, r in zip(valid, ready, strict=True)]
        for twin, into, out in self.chains:
            twin.step(fired[into], fired[out])
        for fork, into, outs in self.forks:
            fork.step_each(fired[into], [fired[out] for out in outs])
        for twin, left, _, out in self.joins:
            twin.step(fired[left], fired[out])
        return fired


def simulate_control(
    design: Design,
    tensors: int = 1,
    stalls: Stalls = NO_STALLS,
    queues: Mapping[Wire, Twin] | None = None,
) -> Timing:
    """Exact times of every beat at the ports while `tensors` tensors pass; raises on deadlock.

    `queues` puts further queues on wires, to try FIFO depths without changing the design.
    """
    model = _Model(design, queues or {})
    wanted_in = [tensors * s.beats for s in design.inputs.values()]
    wanted_out = [tensors * s.beats for s in design.output_streams().values()]
    times_in, times_out = _run(model, wanted_in, wanted_out, stalls, design)
    return Timing(
        dict(zip(design.inputs, times_in, strict=True)),
        dict(zip(design.outputs, times_out, strict=True)),
    )


def _run(
    model: _Model, wanted_in: list[int], wanted_out: list[int], stalls: Stalls, design: Design
) -> tuple[list[list[int]], list[list[int]]]:
    valid_below, ready_below = stalls.thresholds()
    draw_in = [_Draw(stalls.seed + 7919 * (k + 1)) for k in range(len(wanted_in))]
    draw_out = [_Draw(stalls.seed + 104729 * (k + 1)) for k in range(len(wanted_out))]
    times_in: list[list[int]] = [[] for _ in wanted_in]
    times_out: list[list[int]] = [[] for _ in wanted_out]
    offering = [False] * len(wanted_in)
    valid, ready = [False] * len(model.names), [False] * len(model.names)
    cycle = quiet = 0
    limit = patience(design.cycles(), stalls)
    while any(len(t) < n for t, n in zip(times_out, wanted_out, strict=True)):
        for k, edge in enumerate(model.sources):
            if not offering[k]:
                drawn = draw_in[k].below(valid_below)
                offering[k] = drawn and len(times_in[k]) < wanted_in[k]
            valid[edge] = offering[k]
        for k, edge in enumerate(model.sinks):
            ready[edge] = draw_out[k].below(ready_below)
        fired = model.cycle(valid, ready)
        for k, edge in enumerate(model.sources):
            if fired[edge]:
                times_in[k].append(cycle)
                offering[k] = False
        for k, edge in enumerate(model.sinks):
            if fired[edge]:
                times_out[k].append(cycle)
        quiet = 0 if any(fired) else quiet + 1
        if quiet > limit:
            raise HardwareError(_deadlock_message(design.name, cycle - quiet, model, valid, ready))
        cycle += 1
    return times_in, times_out


def patience(cycles: int, stalls: Stalls) -> int:
    """Cycles without a beat after which a design of that folding bound will not move any more."""
    rate = min(stalls.valid, stalls.ready)
    return int((200 + 2 * cycles) / rate)


def _deadlock_message(
    name: str, cycle: int, model: _Model, valid: list[bool], ready: list[bool]
) -> str:
    blocked = [n for n, v, r in zip(model.names, valid, ready, strict=True) if v and not r]
    return (
        f"design '{name}' deadlocks in cycle {cycle}: beats wait behind "
        f"{', '.join(dict.fromkeys(blocked)) or 'nothing'}. Forks need deeper FIFOs behind them."
    )


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
