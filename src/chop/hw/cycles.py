"""Exact cycle counts of a design without a simulator, and the FIFO depths that keep it at speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chop.errors import HardwareError
from chop.hw import compiled
from chop.hw.control import Wire
from chop.hw.design import Design, Interface, Stage
from chop.hw.network import Network, Reference, Told
from chop.hw.rtl.fifo import Fifo
from chop.hw.stalls import NO_STALLS as NO_STALLS
from chop.hw.stalls import Stalls as Stalls
from chop.hw.stalls import Times as Times
from chop.hw.stalls import Timing as Timing
from chop.hw.stalls import patience as patience
from chop.hw.twin import Queue, Twin


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

    The model runs compiled where there is a compiler and every twin is a process, else in Python.
    """
    if isinstance(design, Design):
        outputs, cycles = design.output_streams(), design.cycles()
    else:
        outputs, cycles = dict(design.outputs), design.cycles
    wanted = (
        [tensors * s.beats for s in design.inputs.values()],
        [tensors * s.beats for s in outputs.values()],
    )
    network = Network(design, queues or {}, gated)
    told = run_network(network, stalls, wanted, patience(cycles, stalls), limit)
    if not told.is_done:
        raise HardwareError(_deadlock(design.name, network, told))
    return Timing(
        dict(zip(design.inputs, told.inputs, strict=True)),
        dict(zip(outputs, told.outputs, strict=True)),
    )


def run_network(
    network: Network,
    stalls: Stalls,
    wanted: tuple[list[int], list[int]],
    wait: int,
    limit: int | None,
) -> Told:
    """The run of a network, until as many beats as are wanted have passed each source and sink."""
    if compiled.can_run(network):
        told = compiled.run(network, stalls, wanted, wait, limit)
    else:
        told = Reference(network, stalls, *wanted).run(wait, limit)
    for node, mark in zip(network.nodes, told.high_water, strict=True):
        if isinstance(node.twin, Queue):
            node.twin.high_water = mark
    return told


def _deadlock(name: str, network: Network, told: Told) -> str:
    """Where the beats are stuck."""
    blocked = [network.names[edge] for edge in told.blocked]
    return (
        f"design '{name}' deadlocks in cycle {told.last_beat}: beats wait behind "
        f"{', '.join(dict.fromkeys(blocked)) or 'nothing'}. "
        f"Forks need deeper FIFOs behind them."
    )


_TENSORS = 4


def interval(design: Design, queues: Mapping[Wire, Twin] | None = None) -> float:
    """Cycles between tensors in the steady state; infinite for a design that deadlocks.

    A design that holds many tensors at once is followed until all its buffers have filled.
    """
    try:
        tensors, ends = _TENSORS, _ends(design, _TENSORS, queues)
        held = max(e[0] for e in ends) // design.cycles()
        if held > _TENSORS - 2:
            tensors = 2 * held + _TENSORS
            ends = _ends(design, tensors, queues)
    except HardwareError:
        return float("inf")
    return max((e[-1] - e[tensors - 3]) / 2 for e in ends)


def _ends(design: Design, tensors: int, queues: Mapping[Wire, Twin] | None) -> list[list[int]]:
    """The cycles in which tensors have left, by output."""
    timing = simulate_control(design, tensors, queues=queues)
    streams = design.output_streams()
    return [timing.tensor_ends(name, stream.beats) for name, stream in streams.items()]


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
    needed = _needed(design, list(reversed(wires)), [], best)  # nearest to the fork: kept
    depths = {wire: _DEEP for wire in wires if wire in needed}
    for wire in list(depths):
        depths[wire] = _least_depth(design, depths, wire, best)
    return depths


def _needed(design: Design, wires: list[Wire], kept: list[Wire], best: float) -> list[Wire]:
    """Those of `wires` that need a FIFO, dropped in turn, where `kept` have one.

    Further FIFOs never slow a design: where all of a half can go, each of it can.
    """
    if not wires or _holds(design, dict.fromkeys(kept, _DEEP), best):
        return []
    if len(wires) == 1:
        return wires
    first, second = wires[: len(wires) // 2], wires[len(wires) // 2 :]
    found = _needed(design, first, [*kept, *second], best)
    return found + _needed(design, second, [*kept, *found], best)


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
