"""The test that every component passes: values, order, count, handshakes and cycles against RTL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chop.errors import HardwareError
from chop.hw.component import Component
from chop.hw.cycles import NO_STALLS, Stalls
from chop.hw.design import Builder, Design, Wire
from chop.hw.emit import emit
from chop.hw.simulate import Simulator, Verdict, lint, random_inputs

PROFILES = (
    NO_STALLS,
    Stalls(0.5, 0.5, 2, resets=6),
    Stalls(0.9, 0.2, 3),
    Stalls(0.2, 0.9, 4, burst=5, resets=2),
)
"""Full rate; then random stalls on both sides, mostly the sink's, mostly the source's; with resets
in the middle of a tensor."""


def bench_design(components: Sequence[Component]) -> Design:
    """A design with each component alone between its own ports: one build tests them all."""
    builder = Builder("top")
    for k, component in enumerate(components):
        sources = [
            builder.input(f"case{k}_data_in_{n}", stream)
            for n, stream in enumerate(component.inputs)
        ]
        builder.add(f"case{k}", component, *sources)
        for port in range(len(component.outputs)):
            builder.output(f"case{k}_data_out_{port}", Wire(f"case{k}", port))
    return builder.build()


def check_components(
    components: Sequence[Component], directory: Path, tensors: int = 6
) -> list[Verdict]:
    """Run every component under every stall profile; raise at the first thing that is not right.

    Checked: a silent lint, every output value, no handshake law broken, the cycle of every beat
    equal to the cycle model's, every entry of a table, and at full rate the interval equal to the
    folding bound.
    """
    design = bench_design(components)
    simulator = Simulator(design, emit(design, directory))
    if told := lint(directory):
        raise HardwareError(f"verilator -Wall: {told}")
    if (tables := simulator.run_tables()) is not None:
        tables.require_exact()
    inputs = random_inputs(design, tensors)
    verdicts = [simulator.run(inputs, stalls).require_exact() for stalls in PROFILES]
    _check_rate(design, verdicts[0], tensors)
    return verdicts


def _check_rate(design: Design, verdict: Verdict, tensors: int) -> None:
    for name, wire in design.outputs.items():
        ends = verdict.timing.tensor_ends(name, design.stream(wire).beats)
        interval = (ends[-1] - ends[1]) / (tensors - 2)
        bound = design.stage(wire.stage).component.cycles()
        if interval != bound:
            kind = design.stage(wire.stage).component.kind
            raise HardwareError(f"{kind}: {interval} cycles per tensor, the bound is {bound}.")
