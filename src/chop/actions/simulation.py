"""Simulate and synthesise emitted hardware, from its files alone."""

from __future__ import annotations

from pathlib import Path

from chop.errors import HardwareError
from chop.hw import synth
from chop.hw.cocotb_run import CocotbResult, run_cocotb
from chop.hw.cycles import Stalls
from chop.hw.emit import read_interface, read_vectors
from chop.hw.project import latest_project
from chop.hw.simulate import Simulator, Verdict
from chop.hw.waves import draw_handshakes
from chop.log import get_logger
from chop.registry import suggest

logger = get_logger(__name__)
SIMULATORS = ("verilator", "cocotb")
TRACED_CYCLES = 400
STALLS = Stalls(0.6, 0.6, 2)
"""Source and sink each wait in two of five cycles."""


def simulate(
    project_dir: str | Path | None = None,
    *,
    skip_build: bool = False,
    skip_test: bool = False,
    waves: bool = False,
    simulator: str = "verilator",
    stalls: Stalls = STALLS,
) -> Verdict | CocotbResult | None:
    """Run the emitted test vectors through the emitted RTL; raises unless every bit is right.

    The outputs in the vectors are the PyTorch model's: they were compared when they were emitted.

    `project_dir` is by default the one that was emitted last. `verilator` runs natively, under
    random `stalls` and at full rate, and gives the verdict at full rate; `cocotb` runs the emitted
    test bench, which does the same.
    `skip_build` wants a simulator built before; `skip_test` only builds. `waves` keeps the signals
    of the first cycles in `hardware/sim/waves.fst` and a picture of the first handshakes.
    """
    if simulator not in SIMULATORS:
        raise HardwareError(
            f"simulate: unknown simulator '{simulator}'. {suggest(simulator, SIMULATORS)}"
        )
    hardware = _hardware(project_dir)
    interface = read_interface(hardware)
    if simulator == "cocotb":
        return run_cocotb(hardware, top=interface.name, waves=waves)
    if skip_build and not list((hardware / "sim").glob("*/simulator")):
        raise HardwareError(f"{hardware}/sim: no simulator was built. Run with skip_build=False.")
    built = Simulator(interface, hardware, waves=waves)
    if skip_test:
        return None
    inputs = read_vectors(hardware, interface.inputs)
    expected = read_vectors(hardware, interface.outputs)
    built.run(inputs, stalls, expected=expected).require_exact()
    verdict = built.run(inputs, expected=expected, trace=TRACED_CYCLES if waves else 0)
    logger.info("simulate: %s", verdict)
    if waves:
        draw_handshakes(verdict, interface, hardware / "sim" / "handshakes.png")
    return verdict.require_exact()


def synthesize(project_dir: str | Path | None = None, *, family: str = "xc7") -> synth.Area:
    """Cells of the RTL, by default the one emitted last, on a device family, from Yosys."""
    hardware = _hardware(project_dir)
    return synth.synthesize(hardware, read_interface(hardware).name, family)


def _hardware(project_dir: str | Path | None) -> Path:
    return Path(project_dir or latest_project()).expanduser() / "hardware"
