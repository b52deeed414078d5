"""Worst-case inputs of each stage of a design: sums and products at both ends of their range.

A random tensor hardly ever takes a sum to the end of its range, and an accumulator that is a bit
too short is right until one does. The simulator cuts the streams inside a design and drives each
component alone with `Component.ends`. The codes and the results lie beside the test vectors, so
that a simulation from files alone drives the same. `check_widths` proves widths before that, from
the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Memory
from chop.hw.design.control import Wire, signal_name
from chop.hw.design.design import Design, Stage
from chop.hw.design.memories import Files, memory_text, read_codes
from chop.hw.design.stream import Stream


@dataclass(frozen=True)
class EndCase:
    """Codes for the inputs and outputs of one stage, by the signal of the top module."""

    stage: str
    inputs: tuple[tuple[str, Stream, Ints], ...]
    outputs: tuple[tuple[str, Stream, Ints], ...]


def check_widths(design: Design) -> None:
    """Raise unless every sum of `design` fits the width that its component is emitted with."""
    for stage in design.stages:
        parameters = stage.component.parameters()
        for name, exact in stage.component.intervals().items():
            width = parameters[name]
            assert isinstance(width, int), f"{name} is {width!r}, which is no width"
            if width < exact.width:
                raise HardwareError(
                    f"stage '{stage.name}' ({stage.component.kind}): {name} is {width} bits. Its "
                    f"sums lie between {exact.low} and {exact.high}, which need {exact.width}."
                )


def design_ends(design: Design) -> list[EndCase]:
    """Return the worst-case inputs of every stage, with the results of the golden model."""
    cases = [_case(design, stage) for stage in design.stages]
    return [case for case in cases if case is not None]


def _case(design: Design, stage: Stage) -> EndCase | None:
    component = stage.component
    codes = component.ends()
    if not codes:
        return None
    into = zip(stage.sources, component.inputs, codes, strict=True)
    wires = [Wire(stage.name, port) for port in range(len(component.outputs))]
    results = [component.golden(*codes)]  # a component that computes has one output
    out = zip(wires, component.outputs, results, strict=True)
    return EndCase(
        stage.name,
        tuple((_signal(design, wire), stream, each) for wire, stream, each in into),
        tuple((_signal(design, wire), stream, each) for wire, stream, each in out),
    )


def _signal(design: Design, wire: Wire) -> str:
    if wire.stage in design.inputs:
        return wire.stage
    return signal_name(wire, len(design.stage(wire.stage).component.outputs))


# -- files -----------------------------------------------------------------------------------------


def ends_files(design: Design) -> Files:
    """Return the codes of all cases: a file for each input and output of a stage."""
    return {
        _file(case.stage, side, k): memory_text(
            Memory("ends", tuple(stream.words(codes)), stream.beat_width)
        )
        for case in design_ends(design)
        for side, listed in (("in", case.inputs), ("out", case.outputs))
        for k, (_, stream, codes) in enumerate(listed)
    }


def _file(stage: str, side: str, number: int) -> str:
    return f"test/ends_{stage}_{side}_{number}.mem"


@dataclass(frozen=True)
class EndFiles:
    """Signals and streams of a stage whose cases are in files, from `design.json`."""

    stage: str
    inputs: tuple[tuple[str, Stream], ...]
    outputs: tuple[tuple[str, Stream], ...]

    def read(self, directory: Path) -> EndCase:
        """Return the case of the stage in the hardware directory `directory`."""
        into = self._read(directory, "in", self.inputs)
        return EndCase(self.stage, into, self._read(directory, "out", self.outputs))

    def _read(
        self, directory: Path, side: str, listed: tuple[tuple[str, Stream], ...]
    ) -> tuple[tuple[str, Stream, Ints], ...]:
        paths = [directory / _file(self.stage, side, k) for k in range(len(listed))]
        return tuple(
            (signal, stream, read_codes(path, signal, stream, (-1, *stream.shape)))
            for path, (signal, stream) in zip(paths, listed, strict=True)
        )


def files_of(
    stages: Sequence[Mapping[str, Any]], streams: Mapping[Wire, Stream]
) -> tuple[EndFiles, ...]:
    """Return the stages of `design.json` whose cases are in files."""
    counts = {stage["name"]: len(stage["outputs"]) for stage in stages}

    def listed(wires: Iterable[Wire]) -> tuple[tuple[str, Stream], ...]:
        return tuple(
            (signal_name(w, counts[w.stage]) if w.stage in counts else w.stage, streams[w])
            for w in wires
        )

    return tuple(
        EndFiles(
            stage["name"],
            listed(Wire(*wire) for wire in stage["sources"]),
            listed(Wire(stage["name"], k) for k in range(len(stage["outputs"]))),
        )
        for stage in stages
        if stage.get("has_ends")
    )
