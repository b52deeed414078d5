"""A design: components connected by streams, each stream with one producer and one consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from chop import notebook
from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component, ComponentCost
from chop.hw.design.control import Control, ControlStage
from chop.hw.design.control import Wire as Wire
from chop.hw.design.cycle_model import record
from chop.hw.design.reload import ReloadedMemory, ReloadPort, numbered, reload_port
from chop.hw.design.stream import Stream
from chop.registry import suggest


@dataclass(frozen=True, eq=False)
class Stage:
    """A component with a name, fed by `sources`."""

    name: str
    component: Component
    sources: tuple[Wire, ...]


@dataclass(frozen=True)
class Loop:
    """A block that each tensor passes several times, from the stage `entry` to `exit`.

    From there the queue `back` leads to the second input of `entry`. Streams inside are those of
    one pass; other streams that enter carry all passes. `in_flight` tensors go through together.
    """

    entry: str
    exit: str
    back: str
    passes: int
    in_flight: int = 1


@dataclass(frozen=True)
class Interface:
    """Ports and pace of a design, for a test bench."""

    name: str
    inputs: Mapping[str, Stream]
    outputs: Mapping[str, Stream]
    cycles: int
    """Folding bound: least cycles between tensors."""
    control: Control | None = None
    """Control for the cycle model; None if a twin cannot be stored."""
    sent: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Inputs that carry weights: the shape of the codes that each receives repeatedly."""
    passes: int = 1
    """Passes through a block that layers share."""
    in_flight: int = 1
    """Tensors that go through it together: their number must be a multiple of it."""
    reload: ReloadPort | None = None
    """The port that writes weights at run time; None without one."""


@dataclass(frozen=True, eq=False)
class Design:
    """Stages in topological order; `inputs` and `outputs` are the ports of the top module."""

    name: str
    inputs: Mapping[str, Stream]
    stages: tuple[Stage, ...]
    outputs: Mapping[str, Wire]
    sent: Mapping[str, Ints] = field(default_factory=dict)
    """Weights from outside: input -> its codes, in the shape of its stream or 1 if repeated."""
    loop: Loop | None = None
    reloaded: tuple[str, ...] = ()
    """Stages whose streamed memories can be written at run time."""

    @property
    def passes(self) -> int:
        """Passes through the block that layers share; 1 without such a block."""
        return self.loop.passes if self.loop else 1

    @property
    def in_flight(self) -> int:
        """Tensors that go through that block together; 1 without such a block."""
        return self.loop.in_flight if self.loop else 1

    @cached_property
    def looped(self) -> tuple[Stage, ...]:
        """The stages of the block that layers share, from its entry to the way back."""
        if self.loop is None:
            return ()
        names = [stage.name for stage in self.stages]
        return self.stages[names.index(self.loop.entry) : names.index(self.loop.back) + 1]

    def weights(self, tensors: int) -> dict[str, Ints]:
        """Return the codes of the inputs that carry weights, as views that repeat them."""
        return {
            name: np.broadcast_to(codes, (tensors, *self.inputs[name].shape))
            for name, codes in self.sent.items()
        }

    def _repr_html_(self) -> str | None:
        return notebook.view_of(self)

    def stage(self, name: str) -> Stage:
        """Return the stage called `name`."""
        stages = {s.name: s for s in self.stages}
        if name not in stages:
            raise HardwareError(f"design '{self.name}': no stage '{name}'. {suggest(name, stages)}")
        return stages[name]

    def stream(self, wire: Wire) -> Stream:
        """Return the stream on `wire`."""
        if wire.stage in self.inputs:
            return self.inputs[wire.stage]
        return self.stage(wire.stage).component.outputs[wire.port]

    def output_streams(self) -> dict[str, Stream]:
        """Return the streams that leave the design, by port."""
        return {name: self.stream(wire) for name, wire in self.outputs.items()}

    def interface(self) -> Interface:
        """Return ports and pace."""
        return Interface(
            self.name,
            self.inputs,
            self.output_streams(),
            self.cycles(),
            self.control(),
            {name: codes.shape for name, codes in self.sent.items()},
            self.passes,
            self.in_flight,
            self.reload_port,
        )

    @cached_property
    def reloaded_memories(self) -> tuple[ReloadedMemory, ...]:
        """Memories that can be written at run time, in the order of their pieces."""
        stages = [stage for stage in self.stages if stage.name in self.reloaded]
        named = [(stage.name, each) for stage in stages for each in stage.component.memories()]
        return numbered([pair for pair in named if pair[1].is_streamed])

    @cached_property
    def reload_port(self) -> ReloadPort | None:
        """The port that writes these memories; None without any."""
        return reload_port(self.reloaded_memories)

    def control(self) -> Control | None:
        """Return stages and twins without data; None if a twin cannot be stored."""
        stages = []
        for stage in self.stages:
            twins = stage.component.twins()
            records = tuple(stored for twin in twins if (stored := record(twin)) is not None)
            if len(records) < len(twins):
                return None
            outputs = len(stage.component.outputs)
            stages.append(ControlStage(stage.name, stage.sources, outputs, records))
        return Control(tuple(stages), tuple(self.outputs.values()))

    def golden(self, data: Mapping[str, Ints]) -> dict[str, Ints]:
        """Return output codes for input codes, each of shape (tensors, *stream.shape)."""
        values = self.values(data)
        return {name: values[wire.stage] for name, wire in self.outputs.items()}

    def values(self, data: Mapping[str, Ints]) -> dict[str, Ints]:
        """Return the codes of every stage; in a block that layers share, those of the last."""
        values: dict[str, Ints] = dict(data)
        looped = self.looped
        for stage in self.stages:
            if stage not in looped:
                operands = [
                    values[wire.stage].reshape(-1, *stream.shape)
                    for wire, stream in zip(stage.sources, stage.component.inputs, strict=True)
                ]
                values[stage.name] = stage.component.golden(*operands)
            elif stage is looped[0]:
                self._run_loop(looped, values)
        return values

    def _run_loop(self, looped: tuple[Stage, ...], values: dict[str, Ints]) -> None:
        """Run all passes of all tensors."""
        entry, inside = looped[0], {stage.name for stage in looped}
        carried = values[entry.sources[0].stage].reshape(-1, *entry.component.inputs[0].shape)
        for number in range(self.passes):
            values[entry.name] = carried
            for stage in looped[1:]:
                operands = [
                    values[wire.stage].reshape(-1, *stream.shape)
                    if wire.stage in inside
                    else values[wire.stage].reshape(-1, self.passes, *stream.shape)[:, number]
                    for wire, stream in zip(stage.sources, stage.component.inputs, strict=True)
                ]
                values[stage.name] = stage.component.in_pass(number).golden(*operands)
            carried = values[looped[-1].name].reshape(carried.shape)

    def cycles(self) -> int:
        """Return the folding bound of the design: that of the slowest stage."""
        of_ports = [s.beats for s in (*self.inputs.values(), *self.output_streams().values())]
        return max([self.stage_cycles(s) for s in self.stages] + of_ports)

    def stage_cycles(self, stage: Stage) -> int:
        """Return the folding bound of a stage, for all passes that a tensor makes."""
        return stage.component.cycles() * (self.passes if stage in self.looped else 1)

    def cost(self) -> ComponentCost:
        """Return the operators and storage of all stages."""
        return sum((s.component.cost() for s in self.stages), ComponentCost())

    def check(self) -> None:
        """Raise unless every stream has one producer, one consumer and one description."""
        used: set[Wire] = set()
        open_wires = {Wire(name) for name in self.inputs}
        open_wires |= {Wire(self.loop.back)} if self.loop else set()
        inside = {stage.name for stage in self.looped}
        for stage in self.stages:
            is_inside = stage.name in inside and stage is not self.looped[0]
            for wire, expected in zip(stage.sources, stage.component.inputs, strict=True):
                self._check_wire(wire, stage.name, open_wires, used)
                passes = self.passes if is_inside and wire.stage not in inside else 1
                if (
                    self.stream(wire).beats != passes * expected.beats
                    or self.stream(wire).lanes != expected.lanes
                ):
                    raise HardwareError(
                        f"stage '{stage.name}': expected {expected}, '{wire.stage}' gives "
                        f"{self.stream(wire)}."
                    )
            open_wires |= {Wire(stage.name, p) for p in range(len(stage.component.outputs))}
        for name, wire in self.outputs.items():
            self._check_wire(wire, name, open_wires, used)
        if open_wires - used:
            idle = ", ".join(sorted(w.stage for w in open_wires - used))
            raise HardwareError(f"design '{self.name}': nothing uses the output of {idle}.")

    def _check_wire(self, wire: Wire, user: str, open_wires: set[Wire], used: set[Wire]) -> None:
        if wire not in open_wires:
            raise HardwareError(f"'{user}' uses '{wire.stage}', which no earlier stage gives.")
        if wire in used:
            raise HardwareError(f"'{user}' uses '{wire.stage}' a second time: it needs a fork.")
        used.add(wire)


def whole_flights(codes: Mapping[str, Ints], in_flight: int) -> dict[str, Ints]:
    """Repeat tensors from the first until their number is a multiple of `in_flight`."""
    whole = {}
    for name, each in codes.items():
        missing = -len(each) % in_flight if len(each) else 0
        rows = np.arange(len(each) + missing) % max(len(each), 1)
        whole[name] = each[rows] if missing else each
    return whole
