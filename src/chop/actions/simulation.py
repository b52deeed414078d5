"""Simulate and synthesise emitted hardware, from its files alone."""

from __future__ import annotations

from pathlib import Path

from chop import toolchain
from chop.arguments import NONE, PATH, takes
from chop.errors import HardwareError
from chop.hw.design.design import Interface
from chop.hw.flow import synth
from chop.hw.flow.project import latest_project
from chop.hw.sim.cocotb_run import CocotbResult, run_cocotb
from chop.hw.sim.emit import read_inputs, read_interface, read_vectors, require_ours
from chop.hw.sim.exercise import STALLS, exercise
from chop.hw.sim.simulate import Simulator, Verdict
from chop.hw.sim.waves import draw_handshakes
from chop.hw.timing.cycles import Stalls
from chop.log import get_logger
from chop.registry import suggest

logger = get_logger(__name__)
SIMULATORS = ("verilator", "cocotb")
TRACED_CYCLES = 400


@takes(HardwareError, project_dir=PATH | NONE)
def simulate(
    project_dir: str | Path | None = None,
    *,
    skip_build: bool = False,
    skip_test: bool = False,
    waves: bool = False,
    simulator: str = "verilator",
    stalls: Stalls = STALLS,
    trust: bool = False,
) -> Verdict | CocotbResult | None:
    """Run the emitted test vectors through the emitted RTL; raises unless all of it is right.

    The outputs in the vectors are the PyTorch model's: they were compared when they were emitted.

    `project_dir` is by default the one that was emitted last. `verilator` runs natively and gives
    the verdict at full rate, after runs with random `stalls` at the ports, with stalls inside, with
    a slow source, with resets in the middle of a tensor and with every table entry; values,
    handshakes and the cycle of every beat are compared. `cocotb` runs the emitted test bench:
    values, with and without stalls.
    `skip_build` wants a simulator built before; `skip_test` only builds. `waves` keeps the signals
    of the first cycles in `hardware/sim/waves.fst` and a picture of the first handshakes.
    RTL is a program: a folder that holds other files than this package emitted, or that were
    changed since, is refused unless you `trust` it.
    """
    if simulator not in SIMULATORS:
        raise HardwareError(
            f"simulate: unknown simulator '{simulator}'. {suggest(simulator, SIMULATORS)}"
        )
    hardware = _hardware(project_dir)
    interface = emitted_interface(project_dir, trust=trust)
    if simulator == "cocotb":
        return run_cocotb(hardware, top=interface.name, waves=waves)
    if skip_build and not list((hardware / "sim").glob("*/simulator")):
        raise HardwareError(f"{hardware}/sim: no simulator was built. Run with skip_build=False.")
    built = Simulator(interface, hardware, waves=waves)
    if skip_test:
        return None
    inputs = read_inputs(hardware, interface)
    expected = read_vectors(hardware, interface.outputs)
    trace = TRACED_CYCLES if waves else 0
    verdict = exercise(built, inputs, expected=expected, stalls=stalls, trace=trace)
    logger.info("simulate: %s", verdict)
    logger.info("simulate: %s", verdict.rate)
    if waves:
        draw_handshakes(verdict, interface, hardware / "sim" / "handshakes.png")
    return verdict


@takes(HardwareError, project_dir=PATH | NONE)
def synthesize(
    project_dir: str | Path | None = None, *, family: str = "xc7", trust: bool = False
) -> synth.Area:
    """Cells of the RTL, by default the one emitted last, on a device family, from Yosys.

    As `simulate`, of emitted files alone unless you `trust` the folder.
    """
    interface = emitted_interface(project_dir, trust=trust)
    return synth.synthesize(_hardware(project_dir), interface.name, family)


def emitted_interface(project_dir: str | Path | None, *, trust: bool) -> Interface:
    """Return the ports of an emitted design; raise where its files are others, unless trusted."""
    hardware = _hardware(project_dir)
    interface = read_interface(hardware)
    if not trust:
        require_ours(hardware, interface.name)
    return interface


def require_simulator(simulator: str) -> None:
    """Raise unless the programs of `simulator` are installed."""
    if simulator == "cocotb":
        toolchain.require_package("cocotb")
        toolchain.program("iverilog")
    else:
        toolchain.verilator()


def _hardware(project_dir: str | Path | None) -> Path:
    return Path(project_dir or latest_project()).expanduser() / "hardware"
