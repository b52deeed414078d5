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
        """An input port; `sent` are the codes of one that carries weights."""
        self._inputs[self._fresh(name)] = stream
        if sent is not None:
            self._sent[name] = sent
        return Wire(name)

    def output(self, name: str, wire: Wire) -> None:
        """An output port."""
        self._outputs[name] = wire

    def add(self, name: str, component: Component, *sources: Wire) -> Wire:
        """A stage; streams of another format or parallelism are brought to what it takes."""
        fitted = [
            self._fit(name, k, wire, wanted)
            for k, (wire, wanted) in enumerate(zip(sources, component.inputs, strict=True))
        ]
        self._stages.append(Stage(self._fresh(name), component, tuple(fitted)))
        return Wire(name)

    def stream(self, wire: Wire) -> Stream:
        """What flows on `wire`."""
        return self._design().stream(wire)

    def build(self) -> Design:
        """The design, with a fork where a stream has several users."""
        return with_forks(self.plain())

    def plain(self) -> Design:
        """The stages as they are, without forks."""
        return self._design()

    def _design(self) -> Design:
        return Design(self.name, self._inputs, tuple(self._stages), self._outputs, self._sent)

    def fresh(self, name: str) -> str:
        """`name`, with a number where it is taken."""
        taken = {*self._inputs, *(s.name for s in self._stages)}
        numbered = (f"{name}_{k}" for k in itertools.count(2))
        return name if name not in taken else next(n for n in numbered if n not in taken)

    def _fresh(self, name: str) -> str:
        if name in self._inputs or any(s.name == name for s in self._stages):
            raise HardwareError(f"design '{self.name}': the name '{name}' is taken.")
        return name

    def _fit(self, user: str, operand: int, wire: Wire, wanted: Stream) -> Wire:
        given = self.stream(wire)
        if given.elements != wanted.elements:
            raise HardwareError(
                f"stage '{user}' takes {wanted.shape}, '{wire.stage}' gives {given.shape}."
            )
        for kind, differs, make in (
            ("cast", not wanted.format.holds(given.format), lambda s: Cast(s, wanted.format)),
            ("gearbox", given.lanes != wanted.lanes, lambda s: Gearbox(s, wanted.lanes)),
        ):
            if differs:
                name = self._fresh(f"{user}_{kind}_{operand}")
                lanes = self.stream(wire).lanes
                shape = (given.elements,) if wanted.shape[-1] % lanes else wanted.shape
                source = replace(self.stream(wire), shape=shape)
                self._stages.append(Stage(name, make(source), (wire,)))
                wire = Wire(name)
        return wire


def with_forks(design: Design) -> Design:
    """`design`, checked, with a fork after each stream that has several users, in their order."""
    users: dict[Wire, int] = {}
    for wire in _uses(design):
        users[wire] = users.get(wire, 0) + 1
    shared = [wire for wire, count in users.items() if count > 1]
    taken = dict.fromkeys(shared, 0)
    forks = {
        wire: Stage(f"{wire.stage}_fork", Fork(design.stream(wire), users[wire]), (wire,))
        for wire in shared
    }

    def branch(wire: Wire) -> Wire:
        if wire not in forks:
            return wire
        taken[wire] += 1
        return Wire(forks[wire].name, taken[wire] - 1)

    stages = [forks[Wire(name)] for name in design.inputs if Wire(name) in forks]
    for stage in design.stages:
        stages.append(replace(stage, sources=tuple(branch(w) for w in stage.sources)))
        ends = [Wire(stage.name, port) for port in range(len(stage.component.outputs))]
        stages += [forks[wire] for wire in ends if wire in forks]
    outputs = {name: branch(wire) for name, wire in design.outputs.items()}
    forked = replace(design, stages=tuple(stages), outputs=outputs)
    forked.check()
    return forked


def _uses(design: Design) -> list[Wire]:
    of_stages = [wire for stage in design.stages for wire in stage.sources]
    return of_stages + list(design.outputs.values())
