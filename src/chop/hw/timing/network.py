"""The twins of a design as one network of processes, and its run in plain Python.

This is the reference of what `cycles.cpp` does: every cycle, every node, nothing skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from chop.hw.design.control import Wire
from chop.hw.design.cycle_model import Twin, declared, from_record
from chop.hw.design.design import Design, Interface
from chop.hw.design.process import Machine, Process
from chop.hw.timing.stalls import Stalls, Times, draws


class _Part(NamedTuple):
    name: str
    sources: Sequence[Wire]
    outputs: int
    twins: list[Twin]


def _parts(design: Design | Interface) -> tuple[list[_Part], Iterable[Wire]]:
    """Return the stages of a design, and the wires of its outputs."""
    if isinstance(design, Design):
        parts = [(s.name, s.sources, s.component) for s in design.stages]
        return [
            _Part(n, w, len(c.outputs), c.twins()) for n, w, c in parts
        ], design.outputs.values()
    assert design.control is not None, f"'{design.name}' has twins that files do not keep"
    return [
        _Part(s.name, s.sources, s.outputs, [from_record(record) for record in s.twins])
        for s in design.control.stages
    ], design.control.outputs


class TwinNode(NamedTuple):
    """A twin between the edges that feed it and those that it feeds."""

    twin: Twin
    process: Process | None
    """None if the twin moves by its own `step`."""
    inputs: list[int]
    outputs: list[int]


class Gate(NamedTuple):
    """A gate that may hold up a stream: its place in the caller's list, the edges around it."""

    number: int
    before: int
    behind: int


class TwinNetwork:
    """Nodes in the order of stages, and numbered edges between them; `names` has their stages."""

    def __init__(
        self, design: Design | Interface, queues: Mapping[Wire, Twin], gated: Sequence[Wire]
    ) -> None:
        self.names: list[str] = []
        self.nodes: list[TwinNode] = []
        self.gates: list[Gate] = []
        self._edges: dict[Wire, int] = {}
        self._ahead: dict[Wire, int] = {}
        self._queues = queues
        self._gated = {wire: k for k, wire in enumerate(gated)}
        self.sources = [self._open(Wire(name)) for name in design.inputs]
        parts, outputs = _parts(design)
        for part in parts:
            self._add_stage(part)
        self.sinks = [self._edges[wire] for wire in outputs]

    def drop_pipelines(self) -> None:
        """Leave each node the least storage that any timing leaves it."""
        self.nodes = [
            node._replace(process=node.process and node.process.without_pipeline())
            for node in self.nodes
        ]

    @property
    def is_declared(self) -> bool:
        """True if every twin is a process."""
        return all(node.process is not None for node in self.nodes)

    def _new_edge(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def _open(self, wire: Wire) -> int:
        edge = self._new_edge(wire.stage)
        self._close(wire, edge)
        return edge

    def _close(self, wire: Wire, edge: int) -> None:
        """End `wire` with `edge`, or behind the queue requested there."""
        if wire in self._queues:
            behind = self._ahead.get(wire)
            behind = self._new_edge(wire.stage) if behind is None else behind
            self._add_node(self._queues[wire], [edge], [behind])
            edge = behind
        self._edges[wire] = edge

    def _enter(self, wire: Wire) -> int:
        """Return the edge by which the beats of `wire` reach the stage that takes them.

        The wire may be that of a later stage: the way back of a loop.
        """
        if wire not in self._edges:
            self._edges[wire] = self._ahead[wire] = self._new_edge(wire.stage)
        edge = self._edges[wire]
        if wire not in self._gated:
            return edge
        behind = self._new_edge(wire.stage)
        self.gates.append(Gate(self._gated[wire], edge, behind))
        return behind

    def _add_stage(self, stage: _Part) -> None:
        edges = [self._enter(wire) for wire in stage.sources]
        wires = [Wire(stage.name, p) for p in range(stage.outputs)]
        if not stage.twins:  # combinational: one handshake on both sides
            self._close(wires[0], edges[0])
            return
        before: list[int] = []
        for twin in stage.twins[:-1]:
            inner = self._new_edge(stage.name)
            self._add_node(twin, _feeding(twin, edges, before), [inner])
            before = [inner]
        # the node stands before the queues behind it
        outs = [
            self._ahead[wire]
            if wire in self._ahead and wire not in self._queues
            else self._new_edge(stage.name)
            for wire in wires
        ]
        self._add_node(stage.twins[-1], _feeding(stage.twins[-1], edges, before), outs)
        for wire, edge in zip(wires, outs, strict=True):
            self._close(wire, edge)

    def _add_node(self, twin: Twin, inputs: list[int], outputs: list[int]) -> None:
        self.nodes.append(TwinNode(twin, declared(twin), inputs, outputs))


def _feeding(twin: Twin, edges: list[int], before: list[int]) -> list[int]:
    if twin.sources is None:
        return before or edges
    return [before[0] if k < 0 else edges[k] for k in twin.sources]


class RunOutcome(NamedTuple):
    """RunOutcome of a run: cycles of beats by port, and the state at its end."""

    inputs: list[Times]
    outputs: list[Times]
    is_done: bool
    last_beat: int
    """The last cycle in which a beat moved anywhere."""
    blocked: list[int]
    """Edges that offered a beat that was not taken."""
    high_water: list[int]
    """Most beats in an output queue, by node."""
    states: list[tuple[int, ...]]
    """State of each node at the end, pipelines left out; empty for a twin with its own `step`."""


class _OwnTwin:
    """A twin with its own `step`, as a machine."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin

    @property
    def offers(self) -> list[bool]:
        return [self.twin.gives]

    def takes(self, valid: Sequence[bool]) -> list[bool]:
        inputs = range(len(valid))
        return [self.twin.takes and all(valid[k] for k in inputs if k != i) for i in inputs]

    def step(self, consumed: Sequence[bool], produced: Sequence[bool]) -> None:
        self.twin.step(consumed[0], produced[0])


class ReferenceRun:
    """A network between the driver's sources and sinks, in plain Python."""

    def __init__(
        self, network: TwinNetwork, stalls: Stalls, wanted_in: list[int], wanted_out: list[int]
    ) -> None:
        valid, ready, inside = stalls.thresholds()
        self.network = network
        self.machines = [
            Machine(n.process) if n.process else _OwnTwin(n.twin) for n in network.nodes
        ]
        self.wanted_in, self.wanted_out = wanted_in, wanted_out
        self.draw_in = draws(stalls, 7919, len(wanted_in), valid)
        self.draw_out = draws(stalls, 104729, len(wanted_out), ready)
        self.draw_gate = draws(
            stalls, 1299709, 1 + max((g.number for g in network.gates), default=-1), inside
        )
        self.held = [False] * len(self.draw_gate)
        self.times_in: list[list[int]] = [[] for _ in wanted_in]
        self.times_out: list[list[int]] = [[] for _ in wanted_out]
        self.offering = [False] * len(wanted_in)
        edges = len(network.names)
        self.valid, self.ready = [False] * edges, [False] * edges
        self.cycle, self.last_beat = 0, -1

    def run(self, patience: int, limit: int | None) -> RunOutcome:
        """Run until every beat has left, nothing moved for `patience` cycles, or `limit` cycles."""
        while not self._is_done() and (limit is None or self.cycle < limit):
            self._step()
            if self.cycle - 1 - self.last_beat > patience:
                break
        claims = enumerate(zip(self.valid, self.ready, strict=True))
        blocked = [edge for edge, (v, r) in claims if v and not r]
        high = [m.high_water if isinstance(m, Machine) else 0 for m in self.machines]
        done = self._is_done() or (limit is not None and self.cycle >= limit)
        states = [m.state if isinstance(m, Machine) else () for m in self.machines]
        rest = (done, self.last_beat, blocked, high, states)
        return RunOutcome([*self.times_in], [*self.times_out], *rest)

    def _is_done(self) -> bool:
        pairs = zip(self.times_out, self.wanted_out, strict=True)
        return all(len(times) >= count for times, count in pairs)

    def _step(self) -> None:
        network = self.network
        for k, edge in enumerate(network.sources):
            if not self.offering[k]:
                has_more = len(self.times_in[k]) < self.wanted_in[k]
                self.offering[k] = self.draw_in[k].next() and has_more
            self.valid[edge] = self.offering[k]
        for k, edge in enumerate(network.sinks):
            self.ready[edge] = self.draw_out[k].next()
        fired = self._move([draw.next() for draw in self.draw_gate])
        for k, edge in enumerate(network.sources):
            if fired[edge]:
                self.times_in[k].append(self.cycle)
                self.offering[k] = False
        for k, edge in enumerate(network.sinks):
            if fired[edge]:
                self.times_out[k].append(self.cycle)
        if any(fired):
            self.last_beat = self.cycle
        self.cycle += 1

    def _move(self, passes: list[bool]) -> list[bool]:
        """Advance every node one cycle; return the edges that had a beat."""
        self._claim(passes)
        fired = [v and r for v, r in zip(self.valid, self.ready, strict=True)]
        for node, machine in zip(self.network.nodes, self.machines, strict=True):
            machine.step([fired[e] for e in node.inputs], [fired[e] for e in node.outputs])
        for gate in self.network.gates:  # a beat that was offered stays offered
            self.held[gate.number] = self.valid[gate.behind] and not self.ready[gate.behind]
        return fired

    def _claim(self, passes: list[bool]) -> None:
        """Compute who offers and who would take, on every edge."""
        valid, ready, nodes = self.valid, self.ready, self.network.nodes
        for node, machine in zip(nodes, self.machines, strict=True):
            for edge, offers in zip(node.outputs, machine.offers, strict=True):
                valid[edge] = offers
        for k, before, behind in self.network.gates:
            valid[behind] = valid[before] and (passes[k] or self.held[k])
        for node, machine in zip(nodes, self.machines, strict=True):
            ready_inputs = machine.takes([valid[e] for e in node.inputs])
            for edge, takes in zip(node.inputs, ready_inputs, strict=True):
                ready[edge] = takes
        for k, before, behind in reversed(self.network.gates):
            ready[before] = ready[behind] and (passes[k] or self.held[k])
