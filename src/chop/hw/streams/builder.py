"""Builder of designs: stages, and the casts, gearboxes and forks between them."""

from __future__ import annotations

import itertools
from dataclasses import replace

from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component
from chop.hw.design.control import Wire
from chop.hw.design.design import Design, Stage
from chop.hw.design.stream import Stream
from chop.hw.streams.gearbox import Gearbox
from chop.hw.streams.stream_cast import Cast
from chop.hw.streams.stream_fork import Fork


class Builder:
    """Collects stages and adds what lies between them: casts, gearboxes and forks.

    >>> from chop.hw.library.components import Relu
    >>> from chop.hw.arith.golden import Fixed
    >>> builder = Builder("top")
    >>> x = builder.input("data_in_0", Stream((4,), 2, Fixed(8, 4)))
    >>> y = builder.add("relu", Relu(builder.stream(x), Fixed(8, 4)), x)
    >>> builder.output("data_out_0", y)
    >>> [stage.name for stage in builder.build().stages]
    ['relu']
    """

    def __init__(self, name: str = "top") -> None:
        self.name = name
        self._inputs: dict[str, Stream] = {}
        self._stages: list[Stage] = []
        self._outputs: dict[str, Wire] = {}
        self._sent: dict[str, Ints] = {}

    def input(self, name: str, stream: Stream, sent: Ints | None = None) -> Wire:
        """Add an input port; `sent`: the codes of a port that carries weights."""
        self._inputs[self._fresh(name)] = stream
        if sent is not None:
            self._sent[name] = sent
        return Wire(name)

    def output(self, name: str, wire: Wire) -> None:
        """Add an output port."""
        self._outputs[name] = wire

    def add(self, name: str, component: Component, *sources: Wire) -> Wire:
        """Add a stage, with casts and gearboxes before it where a stream does not fit."""
        fitted = [
            self._fit(name, k, wire, target)
            for k, (wire, target) in enumerate(zip(sources, component.inputs, strict=True))
        ]
        self._stages.append(Stage(self._fresh(name), component, tuple(fitted)))
        return Wire(name)

    def stream(self, wire: Wire) -> Stream:
        """Return the stream on `wire`."""
        return self.plain().stream(wire)

    def build(self) -> Design:
        """Return the design, with a fork where a stream has several users."""
        return with_forks(self.plain())

    def plain(self) -> Design:
        """Return the design without forks."""
        return Design(self.name, self._inputs, tuple(self._stages), self._outputs, self._sent)

    def fresh(self, name: str) -> str:
        """Return `name`, with a number if it is in use."""
        names = {*self._inputs, *(s.name for s in self._stages)}
        numbered = (f"{name}_{k}" for k in itertools.count(2))
        return name if name not in names else next(n for n in numbered if n not in names)

    def _fresh(self, name: str) -> str:
        if name in self._inputs or any(s.name == name for s in self._stages):
            raise HardwareError(f"design '{self.name}': the name '{name}' is taken.")
        return name

    def _fit(self, user: str, operand: int, wire: Wire, target: Stream) -> Wire:
        source = self.stream(wire)
        elements = source.elements
        if elements != target.elements:
            raise HardwareError(
                f"stage '{user}' takes {target.shape}, '{wire.stage}' gives {source.shape}."
            )
        for kind, differs, make in (
            ("cast", not target.format.holds(source.format), lambda s: Cast(s, target.format)),
            ("gearbox", source.lanes != target.lanes, lambda s: Gearbox(s, target.lanes)),
        ):
            if differs:
                name = self._fresh(f"{user}_{kind}_{operand}")
                before = self.stream(wire)
                shape = (elements,) if target.shape[-1] % before.lanes else target.shape
                self._stages.append(Stage(name, make(replace(before, shape=shape)), (wire,)))
                wire = Wire(name)
        return wire


def with_forks(design: Design) -> Design:
    """Return `design`, checked, with a fork after each stream that has several users."""
    users: dict[Wire, int] = {}
    of_stages = (wire for stage in design.stages for wire in stage.sources)
    for wire in (*of_stages, *design.outputs.values()):
        users[wire] = users.get(wire, 0) + 1
    shared = [wire for wire, count in users.items() if count > 1]
    branches = dict.fromkeys(shared, 0)
    forks = {
        wire: Stage(f"{wire.stage}_fork", Fork(design.stream(wire), users[wire]), (wire,))
        for wire in shared
    }

    def branch(wire: Wire) -> Wire:
        if wire not in forks:
            return wire
        branches[wire] += 1
        return Wire(forks[wire].name, branches[wire] - 1)

    stages = [forks[Wire(name)] for name in design.inputs if Wire(name) in forks]
    for stage in design.stages:
        stages.append(replace(stage, sources=tuple(branch(w) for w in stage.sources)))
        ends = [Wire(stage.name, port) for port in range(len(stage.component.outputs))]
        stages += [forks[wire] for wire in ends if wire in forks]
    outputs = {name: branch(wire) for name, wire in design.outputs.items()}
    forked = replace(design, stages=tuple(stages), outputs=outputs)
    forked.check()
    return forked
