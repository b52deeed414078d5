"""Proof that a design never deadlocks, for any timing at its ports.

The components are deterministic processes between bounded queues. A step that can be done stays
possible until it is done, so the order of steps does not decide whether a network stops: its
token counts and its capacities do. One thing in the RTL does depend on timing. The registers of a
pipeline move only while the queue behind them has room. At full rate they are full of beats, and a
stage of latency 3 holds 5 beats. With a slow source they hold gaps, which stay where they are when
the queue fills, and the same stage holds 2. FIFOs that were sized at full rate count on storage
that is not there: where one branch of a fork waits for a whole tensor of another, the fork stops.

The proof removes these registers and runs the rest, which is a lower bound:

1. Let the network settle, send the tensors of one flight, and let it settle again. If every output
   beat has come and every process is in the state in which it began, any number of tensors pass.
2. By the first sentences, this network then never stops for any order of arrivals and departures.
3. A design with the registers does at least every step that the network without them can do. In a
   design that has stopped, a pipeline with a beat in it stands before a full queue. So a consumer
   finds every beat that it would find without the registers, and a producer all the room.

Ports are independent: a source offers each beat in the end, and a sink takes each in the end. An
environment that sends one input only after it got some output is not covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chop.errors import HardwareError
from chop.hw.design.control import Wire
from chop.hw.design.cycle_model import Twin, declared
from chop.hw.design.design import Design
from chop.hw.timing.compiled import run_network
from chop.hw.timing.network import RunOutcome, TwinNetwork
from chop.hw.timing.stalls import NO_STALLS, patience


def check_live(design: Design) -> None:
    """Raise an error that names the stages unless `design` provably never deadlocks."""
    opaque = [s for s in design.stages if any(declared(t) is None for t in s.component.twins())]
    unknown = [stage for stage in opaque if _is_on_a_cycle(design, stage.name)]
    if unknown:
        names = ", ".join(f"'{stage.name}'" for stage in unknown)
        raise HardwareError(
            f"design '{design.name}': deadlock freedom cannot be shown. One of several paths leads "
            f"through {names}, whose cycle model has its own `step`. Declare it by `process`."
        )
    stuck = waiting_stages(design)
    if stuck:
        raise HardwareError(
            f"design '{design.name}' deadlocks for some timing of its inputs: beats wait behind "
            f"{', '.join(stuck)}. Forks need deeper FIFOs behind them: use those of `size_fifos`."
        )


def is_live(design: Design, queues: Mapping[Wire, Twin] | None = None) -> bool:
    """Return whether `design` with `queues` has the proof; note the high-water mark of each."""
    return not waiting_stages(design, queues)


def waiting_stages(design: Design, queues: Mapping[Wire, Twin] | None = None) -> list[str]:
    """Return the stages that hold back beats in the proof; none if the design never deadlocks."""
    network = TwinNetwork(design, queues or {}, ())
    network.drop_pipelines()
    rest = _settled(design, network, 0)
    outcome = _settled(design, network, design.in_flight)
    beats = [design.in_flight * s.beats for s in design.output_streams().values()]
    if any(len(times) < count for times, count in zip(outcome.outputs, beats, strict=True)):
        return _names(network, outcome.blocked)
    nodes = zip(network.nodes, rest.states, outcome.states, strict=True)
    return _names(network, [n.outputs[0] for n, before, after in nodes if before != after])


def _settled(design: Design, network: TwinNetwork, tensors: int) -> RunOutcome:
    """Send `tensors` tensors at full rate, and run until nothing moves."""
    sent = [tensors * stream.beats for stream in design.inputs.values()]
    # one beat more than can come, so that the run ends when nothing moves
    beats = [tensors * stream.beats + 1 for stream in design.output_streams().values()]
    return run_network(network, NO_STALLS, (sent, beats), patience(design.cycles(), NO_STALLS))


def _names(network: TwinNetwork, edges: Sequence[int]) -> list[str]:
    return list(dict.fromkeys(network.names[edge] for edge in edges))


def _is_on_a_cycle(design: Design, name: str) -> bool:
    """Return whether two wires at stage `name` are also connected by other stages."""
    groups: dict[str, str] = {}

    def group(stage: str) -> str:
        while stage in groups:
            stage = groups[stage]
        return stage

    ends = [(w.stage, s.name) for s in design.stages for w in s.sources]
    for one, other in ends:
        if name not in (one, other) and group(one) != group(other):
            groups[group(one)] = group(other)
    around = [group(other if one == name else one) for one, other in ends if name in (one, other)]
    return len(set(around)) < len(around)
