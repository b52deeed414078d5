"""The test that every component passes: values, order, count, handshakes and cycles against RTL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component
from chop.hw.design.design import Design, Wire
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator, Verdict, lint, random_inputs
from chop.hw.sim.worst_case import EndCase, design_ends
from chop.hw.streams.builder import Builder
from chop.hw.timing.cycles import NO_STALLS, Stalls

PROFILES = (
    NO_STALLS,
    Stalls(0.5, 0.5, 2, resets=6),
    Stalls(0.9, 0.2, 3),
    Stalls(0.2, 0.9, 4, burst=5, resets=2),
)
"""Full rate; then random stalls on both sides, mostly the sink's, mostly the source's; with resets
in the middle of a tensor."""
MOST_TENSORS, LEAST_TENSORS, CYCLES = 24, 8, 6000
"""Random tensors of each component: as many as take `CYCLES` at full rate, within bounds. Six left
faults in rounding constants unseen."""


def enough_tensors(design: Design) -> int:
    """Return the number of random tensors to test the components of `design` with."""
    return max(LEAST_TENSORS, min(MOST_TENSORS, CYCLES // design.cycles()))


def bench_design(components: Sequence[Component]) -> Design:
    """Return a design with each component between its own ports: one build tests them all."""
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


@dataclass(frozen=True)
class ComponentCheck:
    """Expected behaviour of the components of `design`, for any number of simulators."""

    design: Design
    tensors: int
    seed: int = 0

    @cached_property
    def inputs(self) -> dict[str, Ints]:
        """Random codes for every port."""
        return random_inputs(self.design, self.tensors, self.seed)

    @cached_property
    def expected(self) -> dict[str, Ints]:
        """Results of the golden model."""
        return self.design.golden(self.inputs)

    @cached_property
    def ends(self) -> list[EndCase]:
        """Worst-case inputs of every component."""
        return design_ends(self.design)

    def run(self, simulator: Simulator) -> list[Verdict]:
        """Return a verdict for each stall profile; raise at the first thing that is not right."""
        for verdict in (simulator.run_tables(), simulator.run_ends(self.ends)):
            if verdict is not None:
                verdict.require_exact()
        verdicts = [
            simulator.run(self.inputs, stalls, expected=self.expected).require_exact()
            for stalls in PROFILES
        ]
        _check_rate(self.design, verdicts[0], self.tensors)
        return verdicts


def check_components(
    components: Sequence[Component], directory: Path, tensors: int | None = None
) -> list[Verdict]:
    """Run every component under every stall profile; raise at the first thing that is not right.

    Checked: a silent lint; every output value on random and on worst-case inputs; handshake laws;
    the cycle of every beat; every entry of a table; at full rate, the folding bound.
    """
    design = bench_design(components)
    simulator = Simulator(design, emit(design, directory), is_quick=True)
    if complaints := lint(directory):
        raise HardwareError(f"verilator -Wall: {complaints}")
    return ComponentCheck(design, tensors or enough_tensors(design)).run(simulator)


def _check_rate(design: Design, verdict: Verdict, tensors: int) -> None:
    for name, wire in design.outputs.items():
        ends = verdict.timing.tensor_ends(name, design.stream(wire).beats)
        interval = (ends[-1] - ends[1]) / (tensors - 2)
        bound = design.stage(wire.stage).component.cycles()
        if interval != bound:
            kind = design.stage(wire.stage).component.kind
            raise HardwareError(f"{kind}: {interval} cycles per tensor, the bound is {bound}.")
