"""Repeated layers in one physical block: found in a design, and built as a loop.

Layers are repeated if the stages behind a stream come in equal runs: the same components, with the
same sources, each run fed by the one before it. One run stays; tensors pass it once for each layer,
with its constants switched (`chop.hw.design.switched`). A mask that all layers read is stored and
replayed in each pass; weights from outside come by one port, layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component, ComponentCost
from chop.hw.design.design import Design, Loop, Stage, Wire
from chop.hw.design.stream import Stream
from chop.hw.design.switched import Switched, differences
from chop.hw.streams.fifo import Fifo
from chop.hw.streams.stream_route import LoopEntry, LoopExit, Replay

Run = Sequence[Stage]
"""The stages of one layer."""


@dataclass(frozen=True, eq=False)
class Repeat:
    """Equal runs of stages, the first fed by `entry`, each other by the run before it.

    `result`: number of a stage in the run, and of its port, that feeds the next run.
    """

    entry: Wire
    runs: tuple[Run, ...]
    result: tuple[int, int]

    @property
    def worth(self) -> tuple[int, int, int]:
        """Multipliers, register bits and stages of the runs behind the first."""
        stages = [stage for run in self.runs[1:] for stage in run]
        saved = sum((stage.component.cost() for stage in stages), ComponentCost())
        return saved.multipliers, saved.register_bits, len(stages)

    def result_of(self, number: int) -> Wire:
        """Return the result wire of a run."""
        stage, port = self.result
        return Wire(self.runs[number][stage].name, port)

    def differences(self) -> list[str]:
        """Return the differences that keep the runs apart, in words."""
        lines = []
        for run in self.runs[1:]:
            for one, other in zip(self.runs[0], run, strict=True):
                words = differences(one.component, other.component)
                lines += [f"'{one.name}' and '{other.name}': {'; '.join(words)}"] if words else []
        return lines


@dataclass(frozen=True, eq=False)
class Shared:
    """A design with a loop, and the new places of the stages of its layers, by name."""

    design: Design
    streams: Mapping[str, Wire | None]
    """New wires of the last layer; None for the other layers, whose streams are gone."""
    components: Mapping[str, Component]

    @classmethod
    def of(cls, design: Design, repeat: Repeat) -> Shared:
        """Return the result for the layers of `repeat`."""
        assert design.loop is not None, "layers are shared by a loop"
        streams: dict[str, Wire | None] = {s.name: None for run in repeat.runs for s in run}
        pairs = zip(repeat.runs[0], repeat.runs[-1], strict=True)
        streams |= {last.name: Wire(first.name) for first, last in pairs}
        streams[repeat.result_of(-1).stage] = Wire(design.loop.exit, 1)
        components = {
            stage.name: design.stage(same[0].name).component
            for same in zip(*repeat.runs, strict=True)
            for stage in same
        }
        return cls(design, streams, components)


def share_layers(design: Design, in_flight: int = 1) -> Shared:
    """Return `design`, without forks, with its repeated layers in one block; raise without any.

    `in_flight` tensors go through the block together: all make a pass before any makes the next.
    """
    if in_flight < 1 or (in_flight > 1 and design.sent):
        allowed = "1, where weights come from outside" if design.sent else "1 or more"
        raise HardwareError(f"in_flight is {in_flight}. Allowed: {allowed}.")
    repeats = sorted(_repeats(design), key=lambda repeat: repeat.worth, reverse=True)
    if not repeats:
        raise HardwareError(
            f"design '{design.name}': no layers are repeated, so none can share a block. Layers "
            f"are alike where they have the same ops, shapes, parallelism and number formats."
        )
    problems: list[str] = []
    for repeat in repeats:
        unlike = _unlike(design, repeat)
        if not unlike:
            return Shared.of(_looped(design, repeat, in_flight), repeat)
        problems = problems or unlike
    more = " …" if len(problems) > 4 else ""
    raise HardwareError(
        f"design '{design.name}': repeated layers differ, so they cannot share a block: "
        f"{'. '.join(problems[:4])}{more}. Give them the same formats and parallelism."
    )


def _unlike(design: Design, repeat: Repeat) -> list[str]:
    """Return the differences of the runs, and of the streams that feed them."""
    stream, result = design.stream(repeat.entry), design.stream(repeat.result_of(0))
    ends = (repeat.entry.stage, repeat.result_of(0).stage)
    problem = [f"'{ends[0]}' gives {stream} to the first, '{ends[1]}' {result} to the next"]
    return repeat.differences() + (problem if stream != result else [])


# -- where layers are repeated ---------------------------------------------------------------------


def _repeats(design: Design) -> Iterator[Repeat]:
    """Yield all repeated runs; formats may still differ."""
    wires = [Wire(name) for name in design.inputs if name not in design.sent]
    wires += [Wire(s.name, p) for s in design.stages for p in range(len(s.component.outputs))]
    looks = {stage.name: _look(stage.component) for stage in design.stages}
    for wire in wires:
        behind = _behind(design, wire)
        kinds = [looks[stage.name] for stage in behind]
        for size in range(1, len(behind) // 2 + 1):
            count = _count(kinds, size)
            for number in range(count, 1, -1):
                runs = [behind[k * size : (k + 1) * size] for k in range(number)]
                repeat = _repeat(design, wire, runs)
                if repeat is not None:
                    yield repeat
                    break


def _look(component: Component) -> tuple[object, ...]:
    streams = (*component.inputs, *component.outputs)
    return (type(component), *((s.shape, s.lanes) for s in streams))


def _behind(design: Design, wire: Wire) -> list[Stage]:
    """Return the stages that depend on `wire`, in order."""
    stages: list[Stage] = []
    names: set[str] = set()
    for stage in design.stages:
        if any(source == wire or source.stage in names for source in stage.sources):
            stages.append(stage)
            names.add(stage.name)
    return stages


def _count(kinds: Sequence[object], size: int) -> int:
    """Return the number of equal runs of `size` at the beginning."""
    count = 1
    while kinds[count * size : (count + 1) * size] == kinds[:size]:
        count += 1
    return count


def _repeat(design: Design, entry: Wire, runs: Sequence[Run]) -> Repeat | None:
    """Return the runs if they have equal sources and only their results are read outside."""
    places = [{stage.name: k for k, stage in enumerate(run)} for run in runs]
    result: tuple[int, int] | None = None
    for number, run in enumerate(runs[1:], start=1):
        for one, other in zip(runs[0], run, strict=True):
            for a, b in zip(one.sources, other.sources, strict=True):
                if a == entry:
                    place = (places[number - 1].get(b.stage, -1), b.port)
                    if place[0] < 0 or result not in (None, place):
                        return None
                    result = place
                elif not _is_alike(design, places[0], places[number], a, b):
                    return None
    if result is None:
        return None
    repeat = Repeat(entry, tuple(runs), result)
    return repeat if _is_closed(design, repeat, places) else None


def _is_alike(
    design: Design, mine: Mapping[str, int], theirs: Mapping[str, int], a: Wire, b: Wire
) -> bool:
    """Return whether two wires are the same place in their runs, or the same outside."""
    if a.stage in mine or b.stage in theirs:
        return mine.get(a.stage) == theirs.get(b.stage) and a.port == b.port
    are_weights = a.stage in design.sent and b.stage in design.sent
    return a == b or are_weights


def _is_closed(design: Design, repeat: Repeat, places: Sequence[Mapping[str, int]]) -> bool:
    """Return whether only the result of each run is read outside it."""
    owner = {name: number for number, place in enumerate(places) for name in place}
    uses = [(owner.get(s.name), wire) for s in design.stages for wire in s.sources]
    uses += [(None, wire) for wire in design.outputs.values()]
    last = len(repeat.runs) - 1
    for reader, wire in uses:
        giver = owner.get(wire.stage)
        if giver is None or giver == reader:
            continue
        if wire != repeat.result_of(giver) or (reader is None) != (giver == last):
            return False
        if reader is not None and reader != giver + 1:
            return False
    return True


# -- the loop --------------------------------------------------------------------------------------


def _looped(design: Design, repeat: Repeat, in_flight: int) -> Design:
    """Return the design with the first run between entry and exit of a loop."""
    passes = len(repeat.runs)
    stream = design.stream(repeat.entry)
    entry, leave, back = (f"{repeat.runs[0][0].name}_{part}" for part in ("entry", "exit", "back"))
    removed = {stage.name for run in repeat.runs for stage in run}
    block, replays = _block(design, repeat, entry, in_flight)
    loop = [
        Stage(entry, LoopEntry(stream, passes, in_flight), (repeat.entry, Wire(back))),
        *block,
        Stage(leave, LoopExit(stream, passes, in_flight), (repeat.result_of(0),)),
        Stage(back, Fifo(stream, in_flight * stream.beats), (Wire(leave),)),
    ]
    moved = {repeat.result_of(passes - 1): Wire(leave, 1)}
    late = {stage.name for stage in _behind(design, repeat.result_of(-1))}
    rest = [stage for stage in design.stages if stage.name not in removed]
    before = [stage for stage in rest if stage.name not in late]
    behind = [stage for stage in rest if stage.name in late]
    behind = [replace(s, sources=tuple(moved.get(w, w) for w in s.sources)) for s in behind]
    inputs, sent = _ports(design, repeat)
    return Design(
        design.name,
        inputs,
        (*before, *replays, *loop, *behind),
        {name: moved.get(wire, wire) for name, wire in design.outputs.items()},
        sent,
        Loop(entry, leave, back, passes, in_flight),
    )


def _block(
    design: Design, repeat: Repeat, entry: str, in_flight: int
) -> tuple[list[Stage], list[Stage]]:
    """Return the stages of the block, and those before it that replay streams for all passes."""
    inside = {stage.name for stage in repeat.runs[0]}
    replays: dict[Wire, Stage] = {}

    def source(wire: Wire) -> Wire:
        if wire == repeat.entry:
            return Wire(entry)
        if wire.stage in inside or wire.stage in design.sent:
            return wire
        if wire not in replays:
            name = f"{wire.stage}_{wire.port}_replay" if wire.port else f"{wire.stage}_replay"
            replay = Replay(design.stream(wire), len(repeat.runs), in_flight)
            replays[wire] = Stage(name, replay, (wire,))
        return Wire(replays[wire].name)

    block = [
        Stage(
            same[0].name,
            _one_for_all([stage.component for stage in same], in_flight),
            tuple(source(wire) for wire in same[0].sources),
        )
        for same in zip(*repeat.runs, strict=True)
    ]
    return block, list(replays.values())


def _one_for_all(components: Sequence[Component], in_flight: int) -> Component:
    """Return a component for all passes; switched only if it has constants or sums."""
    first = components[0]
    is_plain = not any(memory.is_streamed for memory in first.memories())
    widths = {each.parameters().get("ACC_WIDTH") for each in components}
    return first if is_plain and len(widths) == 1 else Switched(tuple(components), in_flight)


def _ports(design: Design, repeat: Repeat) -> tuple[dict[str, Stream], dict[str, Ints]]:
    """Return the inputs; the weights of repeated layers come by one of them."""
    inputs, sent = dict(design.inputs), dict(design.sent)
    for same in zip(*repeat.runs, strict=True):
        for wires in zip(*(stage.sources for stage in same), strict=True):
            names = [wire.stage for wire in wires]
            if names[0] not in design.sent:
                continue
            stream = design.inputs[names[0]]
            inputs[names[0]] = replace(stream, shape=(len(names), *stream.shape))
            sent[names[0]] = np.stack([design.sent[name] for name in names])
            for name in names[1:]:
                del inputs[name], sent[name]
    return inputs, sent
