"""How fast the RTL of the vision transformer of `hardware_transformer.py` is simulated.

    python bench/simulation_speed.py

All 360 test images through the ordinary program, and through the one for long runs, in which stages
sleep, in one process and in as many as there are cores. Cycles are those of all processes; seconds
are told by the clock, which others on the machine slow down, and of processor time.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path
from typing import Any

from hardware_transformer import trained_vit
from measuring.record import save_section

from chop.hw.lower import Parallelism, lower
from chop.hw.sim.emit import emit
from chop.hw.sim.parallel_runs import usable_cores
from chop.hw.sim.simulate import Simulator
from chop.hw.sim.verdict import Verdict
from chop.hw.timing.cycles import NO_STALLS


def processor_seconds() -> float:
    """Of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def told(verdict: Verdict, processor: float) -> dict[str, Any]:
    """Pace of one run."""
    return {
        "jobs": verdict.jobs,
        "cycles": verdict.simulated_cycles,
        "seconds": verdict.seconds,
        "processor_seconds": processor,
        "cycles_per_second": round(verdict.simulated_cycles / verdict.seconds),
        "cycles_per_processor_second": round(verdict.simulated_cycles / processor),
    }


def measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Both programs, alone and on all cores; every verdict must be the same."""
    graph, data, _ = trained_vit(args.trained)
    lowered = lower(graph, Parallelism(2))
    emit(lowered.design, scratch)
    codes = lowered.encode(data.test_images)
    expected = lowered.design.golden(codes)
    found: dict[str, Any] = {"tensors": len(data.test_images)}
    ends = set()
    few = ({n: c[:8] for n, c in codes.items()}, {n: c[:8] for n, c in expected.items()})
    for name, is_long, runs in (
        ("ordinary", False, (1,)),
        ("long_runs", True, (1, usable_cores())),
    ):
        simulator = Simulator(lowered.design, scratch, long_runs=is_long)
        simulator.run(few[0], expected=few[1])  # the program is built when it is first needed
        for jobs in dict.fromkeys(runs):
            before = processor_seconds()
            verdict = simulator.run(codes, NO_STALLS, expected=expected, jobs=jobs).require_exact()
            found[f"{name}_{jobs}"] = told(verdict, processor_seconds() - before)
            ends.add((verdict.cycles, verdict.compared, verdict.pace.beats))
    found["verdicts_are_the_same"] = len(ends) == 1
    return found


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trained", type=Path, default=Path("out/transformer"))
    parser.add_argument("--folder", type=Path, help="keep the RTL and the programs here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(args, args.folder or Path(scratch))
    print(results)
    print(save_section("hardware_transformer", "simulation_speed", results))


if __name__ == "__main__":
    main()
