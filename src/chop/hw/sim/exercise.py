"""The standard run: all checks that a simulated design must pass to be called exact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.design import whole_flights
from chop.hw.sim.emit import read_ends
from chop.hw.sim.simulate import Simulator
from chop.hw.sim.verdict import Verdict
from chop.hw.sim.worst_case import EndCase, design_ends
from chop.hw.timing.cycles import Stalls

STALLS = Stalls(0.6, 0.6, 2)
"""Source and sink each wait in two of five cycles."""
SLOW = Stalls(0.1, 1.0, 7)
"""The source offers a beat in one of ten cycles, so that pipelines hold gaps instead of beats."""
SLOW_TENSORS = 4
"""Tensors of the run with the slow source: enough for a steady state."""
RESETS = 48
"""Enough that one probably falls into each stage's last cycle of a tensor."""
LEAST_TENSORS = 8
"""Tensors in the runs with stalls; fewer are sent again."""


def profiles(cycles: int, ports: Stalls = STALLS) -> tuple[Stalls, ...]:
    """Return stalls at the ports; inside; and so long that everything fills up and runs dry.

    The last two runs begin after resets in the middle of a tensor. `cycles` is the folding bound.
    """
    return (
        ports,
        Stalls(0.8, 0.8, 3, inside=0.6, resets=RESETS),
        Stalls(0.6, 0.4, 5, burst=6 * cycles + 24, resets=4),
    )


def exercise(
    simulator: Simulator,
    inputs: Mapping[str, Ints],
    *,
    expected: Mapping[str, Ints] | None = None,
    stalls: Stalls = STALLS,
    trace: int = 0,
) -> Verdict:
    """Return the verdict at full rate; raise an error for the first run that is not right.

    Runs: every table entry; each component alone on its worst-case inputs; `profiles`, with
    `stalls` at the ports; the first `SLOW_TENSORS` tensors from a slow source; full rate. Each run
    checks the values, their count, the handshakes at the ports and inside, and, of the whole
    design, the cycle of every beat.
    """
    if (tables := simulator.run_tables()) is not None:
        tables.require_exact()
    if (ends := simulator.run_ends(_end_cases(simulator))) is not None:
        ends.require_exact()
    if expected is None:
        assert simulator.design is not None, "an interface cannot tell the expected outputs"
        expected = simulator.design.golden(inputs)
    together = simulator.interface.in_flight
    inputs, expected = (whole_flights(codes, together) for codes in (inputs, expected))
    more, more_expected = (
        whole_flights(_repeated(codes), together) for codes in (inputs, expected)
    )
    for each in profiles(simulator.interface.cycles, stalls):
        simulator.run(more, each, expected=more_expected).require_exact()
    first = max(SLOW_TENSORS // together, 1) * together
    few, result = ({n: v[:first] for n, v in codes.items()} for codes in (more, more_expected))
    simulator.run(few, SLOW, expected=result).require_exact()
    verdict = simulator.run(inputs, expected=expected, trace=trace).require_exact()
    check_memories(simulator.directory)  # last: a wrong value says more than a wrong file
    return verdict


def _end_cases(simulator: Simulator) -> list[EndCase]:
    """Return the worst-case inputs of each stage: of the design, or from its files."""
    if simulator.design is not None:
        return design_ends(simulator.design)
    return [files.read(simulator.directory) for files in read_ends(simulator.directory)]


def _repeated(codes: Mapping[str, Ints]) -> dict[str, Ints]:
    """Return the tensors, again from the first if they are few."""
    count = max(LEAST_TENSORS, *(len(each) for each in codes.values()))
    is_few = {n: 0 < len(v) < count for n, v in codes.items()}
    return {n: v[np.arange(count) % len(v)] if is_few[n] else v for n, v in codes.items()}


def check_memories(directory: Path) -> None:
    """Raise unless every memory file is the one of `design.json`."""
    design = json.loads((directory / "design.json").read_text())
    listed = {
        f"{stage['name']}_{name}": facts
        for stage in design["stages"]
        for name, facts in stage["memories"].items()
    }
    listed |= {name: facts["sent"] for name, facts in design["inputs"].items() if "sent" in facts}
    for name, facts in listed.items():
        path = directory / "mem" / f"{name}.mem"
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "no file"
        if digest != facts["sha256"]:
            raise HardwareError(f"{path}: not the memory of design.json. Emit it again.")
