"""Exact cycle counts of a design without a simulator, and the FIFO depths that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from chop.errors import HardwareError
from chop.hw.design.control import Wire
from chop.hw.design.cycle_model import Queue, Twin
from chop.hw.design.design import Design, Interface, Stage
from chop.hw.streams.fifo import Fifo
from chop.hw.timing.compiled import run_network
from chop.hw.timing.liveness import is_live
from chop.hw.timing.network import TwinNetwork
from chop.hw.timing.stalls import NO_STALLS as NO_STALLS
from chop.hw.timing.stalls import Stalls as Stalls
from chop.hw.timing.stalls import Times as Times
from chop.hw.timing.stalls import Timing as Timing
from chop.hw.timing.stalls import patience as patience


def simulate_control(
    design: Design | Interface,
    tensors: int = 1,
    stalls: Stalls = NO_STALLS,
    queues: Mapping[Wire, Twin] | None = None,
    gated: Sequence[Wire] = (),
    limit: int | None = None,
) -> Timing:
    """Return the exact cycle of every beat at the ports while `tensors` tensors pass.

    Raise on deadlock. `queues` puts further queues on wires, to try FIFO depths without changing
    the design. `gated` are the wires inside the design that `stalls` holds up. After `limit` cycles
    the model stops and returns the beats until then.

    The model runs compiled if there is a compiler and every twin is a process, else in Python.
    """
    if isinstance(design, Design):
        outputs, cycles = design.output_streams(), design.cycles()
    else:
        outputs, cycles = dict(design.outputs), design.cycles
    beats = (
        [tensors * s.beats for s in design.inputs.values()],
        [tensors * s.beats for s in outputs.values()],
    )
    network = TwinNetwork(design, queues or {}, gated)
    outcome = run_network(network, stalls, beats, patience(cycles, stalls), limit)
    if not outcome.is_done:
        blocked = dict.fromkeys(network.names[edge] for edge in outcome.blocked)
        raise HardwareError(
            f"design '{design.name}' deadlocks in cycle {outcome.last_beat}: beats wait behind "
            f"{', '.join(blocked) or 'nothing'}. Forks need deeper FIFOs behind them."
        )
    return Timing(
        dict(zip(design.inputs, outcome.inputs, strict=True)),
        dict(zip(outputs, outcome.outputs, strict=True)),
    )


_TENSORS = 4


def interval(design: Design, queues: Mapping[Wire, Twin] | None = None) -> float:
    """Return the cycles between tensors in the steady state; infinite for a deadlock.

    The model runs until all buffers of the design have filled.
    """
    return _Pace(design).interval(queues or {})


class _Pace:
    """The steady state of a design with any FIFOs."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.bound = design.cycles()

    def interval(self, queues: Mapping[Wire, Twin], best: float = float("inf")) -> float:
        """Return the cycles between tensors; infinite for a deadlock, estimated above `best`."""
        together = self.design.in_flight
        try:
            cycles, first = self._look(queues, _TENSORS * together)
            in_design = first // self.bound
            if in_design > (_TENSORS - 2) * together and cycles <= best:
                cycles, _ = self._look(
                    queues, (-(-2 * in_design // together) + _TENSORS) * together
                )
        except HardwareError:
            return float("inf")
        return cycles

    def holds(self, depths: Mapping[Wire, int], best: float) -> bool:
        """Return whether FIFOs of these depths prevent every deadlock and allow `best`."""
        queues = _queues(depths)
        return is_live(self.design, queues) and self.interval(queues, best) <= best

    def _look(self, queues: Mapping[Wire, Twin], tensors: int) -> tuple[float, int]:
        """Return the cycles between the last tensors, and the cycle in which the first left."""
        timing = simulate_control(self.design, tensors, queues=queues)
        streams = self.design.output_streams()
        ends = [timing.tensor_ends(name, stream.beats) for name, stream in streams.items()]
        last = 2 * self.design.in_flight
        return max((e[-1] - e[-1 - last]) / last for e in ends), max(e[0] for e in ends)


_DEEP = 1 << 30


def size_fifos(design: Design) -> dict[Wire, int]:
    """Return the least FIFO depths, by wire, for the best interval and freedom from deadlock.

    The interval is that at full rate. Deadlocks are excluded for every timing at the ports, by
    `chop.hw.timing.liveness`: a deeper FIFO never hurts either of them.

    Try the design without FIFOs; then deep FIFOs behind the forks, then on every wire, until the
    folding bound is reached; drop those that are not needed and shrink the rest in turn.
    """
    pace = _Pace(design)
    for wires in ([], *_candidates(design)):
        queues = _queues(dict.fromkeys(wires, _DEEP))
        best = pace.interval(queues)
        if best <= pace.bound and is_live(design, queues):
            break
    needed = _needed(pace, list(reversed(wires)), [], best)  # nearest to the fork: kept
    depths = {wire: _DEEP for wire in wires if wire in needed}
    for wire in list(depths):
        depths[wire] = _least_depth(pace, depths, wire, best)
    return _enough(pace, depths, best)


def _enough(pace: _Pace, depths: dict[Wire, int], best: float) -> dict[Wire, int]:
    """Double the smallest of `depths` until all together are enough.

    Each was found while others were still deep, which can hide that it is too small.
    """
    for wire in sorted(depths, key=depths.__getitem__):
        if pace.holds(depths, best):
            break
        depths = {**depths, wire: 2 * depths[wire]}
    return depths


def _needed(pace: _Pace, wires: list[Wire], fixed: list[Wire], best: float) -> list[Wire]:
    """Return those of `wires` that need a FIFO, dropped in turn, while `fixed` have one.

    Further FIFOs never slow a design: if all of a half can be dropped, each of it can.
    """
    if not wires or pace.holds(dict.fromkeys(fixed, _DEEP), best):
        return []
    if len(wires) == 1:
        return wires
    first, second = wires[: len(wires) // 2], wires[len(wires) // 2 :]
    needed = _needed(pace, first, [*fixed, *second], best)
    return needed + _needed(pace, second, [*fixed, *needed], best)


def _candidates(design: Design) -> tuple[list[Wire], list[Wire]]:
    """Return wires where a FIFO may help: behind the forks, and all inside the design."""
    forks, wires = [], []
    returning = (design.loop.exit, design.loop.back) if design.loop else ()  # has its queue
    for stage in design.stages:
        if stage.name in returning:
            continue
        ends = [Wire(stage.name, p) for p in range(len(stage.component.outputs))]
        inside = [w for w in ends if w not in design.outputs.values()]
        wires += inside
        forks += inside if len(ends) > 1 else []
    return forks, wires


def _least_depth(pace: _Pace, depths: Mapping[Wire, int], wire: Wire, best: float) -> int:
    low, high = 0, max(1, *_high_water(pace, depths, wire))
    if not pace.holds({**depths, wire: high}, best):  # a source that runs ahead fills any FIFO
        return high
    others = {depth for depth in depths.values() if depth < high}  # equal layers need the same
    guesses = [g for depth in sorted(others) for g in (depth, depth - 1)]
    while high - low > 1:
        inside = [g for g in guesses if low < g < high]
        middle = inside[0] if inside else (low + high) // 2
        if pace.holds({**depths, wire: middle}, best):
            high = middle
        else:
            low = middle
    return high


def _high_water(pace: _Pace, depths: Mapping[Wire, int], wire: Wire) -> Iterator[int]:
    """Yield the most beats in the FIFO of `wire`: at full rate, and in the proof of liveness."""
    queues = _queues(depths)
    deep = queues[wire]
    assert isinstance(deep, Queue), "queues are asked for as queues"
    pace.interval(queues)
    yield deep.high_water
    is_live(pace.design, queues)
    yield deep.high_water


def _queues(depths: Mapping[Wire, int]) -> dict[Wire, Twin]:
    return {wire: Queue(depth) for wire, depth in depths.items()}


def with_fifos(design: Design, depths: Mapping[Wire, int], has_head: bool = True) -> Design:
    """Return `design` with a FIFO of the given depth behind each wire; `has_head`: see `Fifo`."""
    stages: list[Stage] = []
    moved: dict[Wire, Wire] = {}

    def place(wire: Wire) -> None:
        if wire in depths:
            name = f"{wire.stage}_fifo" + (f"_{wire.port}" if wire.port else "")
            fifo = Fifo(design.stream(wire), depths[wire], has_head)
            stages.append(Stage(name, fifo, (wire,)))
            moved[wire] = Wire(name)

    for name in design.inputs:
        place(Wire(name))
    for stage in design.stages:
        stages.append(replace(stage, sources=tuple(moved.get(w, w) for w in stage.sources)))
        for port in range(len(stage.component.outputs)):
            place(Wire(stage.name, port))
    outputs = {name: moved.get(wire, wire) for name, wire in design.outputs.items()}
    sized = replace(design, stages=tuple(stages), outputs=outputs)
    sized.check()
    return sized


def balanced(design: Design) -> Design:
    """Return `design` with the FIFOs it needs for its best interval and against deadlock."""
    return with_fifos(design, size_fifos(design))
