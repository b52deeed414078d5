"""Simulation and synthesis of emitted hardware, from its files alone."""

from __future__ import annotations

from pathlib import Path

from chop import toolchain
from chop.arguments import NONE, PATH, takes
from chop.errors import HardwareError
from chop.hw.boards.board_sim import BoardRun, simulate_board
from chop.hw.design.design import Interface
from chop.hw.flow import synth
from chop.hw.flow.project import latest_project
from chop.hw.interfaces.axi_wrapper import run_axi_bench
from chop.hw.sim.activity import Activity, count_activity, store
from chop.hw.sim.cocotb_run import CocotbResult, run_cocotb
from chop.hw.sim.emit import read_inputs, read_interface, read_vectors, require_ours
from chop.hw.sim.exercise import STALLS, exercise
from chop.hw.sim.simulate import Simulator, Verdict
from chop.hw.sim.waves import draw_handshakes
from chop.hw.timing.cycles import Stalls
from chop.log import get_logger
from chop.registry import suggest

logger = get_logger(__name__)
SIMULATORS = ("verilator", "cocotb", "axi", "board")
TRACED_CYCLES = 400
"""Cycles whose signals are stored as waveforms."""


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
) -> Verdict | CocotbResult | BoardRun | None:
    """Run the emitted test vectors through the emitted RTL; raise unless all results are right.

    The expected outputs are those of the PyTorch model, compared when the vectors were emitted.
    `project_dir`: default is the last emitted project. `verilator` returns the verdict at full
    rate, after runs with random `stalls` at the ports, stalls inside, a slow source, resets in the
    middle of a tensor and every table entry. It compares values, handshakes and the cycle of every
    beat. `cocotb` runs the emitted test bench: values, with and without stalls; `axi` that of the
    AXI wrapper; `board` the host program of a board project. `skip_build`: use a simulator that was
    built before. `skip_test`: only build. `waves`: store the signals of the first cycles in
    `hardware/sim/waves.fst`, and a picture of the first handshakes. `trust`: accept a folder whose
    files were emitted elsewhere or changed since; RTL is a program.
    """
    if simulator not in SIMULATORS:
        raise HardwareError(
            f"simulate: unknown simulator '{simulator}'. {suggest(simulator, SIMULATORS)}"
        )
    hardware = _hardware(project_dir)
    interface = emitted_interface(project_dir, trust=trust)
    if simulator == "cocotb":
        return run_cocotb(hardware, top=interface.name, waves=waves)
    if simulator == "axi":
        return run_axi_bench(hardware)
    if simulator == "board":
        return simulate_board(hardware).require_right()
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
def measure_activity(project_dir: str | Path | None = None, *, trust: bool = False) -> Activity:
    """Count the toggles of each stage for the emitted test vectors, and store the counts.

    The counts are also in `hardware/sim/activity.json`. `project_dir` and `trust`: see `simulate`.
    """
    hardware = _hardware(project_dir)
    interface = emitted_interface(project_dir, trust=trust)
    activity = count_activity(hardware, interface, read_inputs(hardware, interface))
    store(activity, hardware)
    return activity


@takes(HardwareError, project_dir=PATH | NONE)
def synthesize(
    project_dir: str | Path | None = None, *, family: str = "xc7", trust: bool = False
) -> synth.Area:
    """Count the cells of the RTL on a device family with Yosys.

    `project_dir` and `trust`: see `simulate`.
    """
    interface = emitted_interface(project_dir, trust=trust)
    return synth.synthesize(_hardware(project_dir), interface.name, family)


def emitted_interface(project_dir: str | Path | None, *, trust: bool) -> Interface:
    """Return the ports of an emitted design; raise if its files changed, unless `trust` is set."""
    hardware = _hardware(project_dir)
    interface = read_interface(hardware)
    if not trust:
        require_ours(hardware, interface.name)
    return interface


def require_simulator(simulator: str) -> None:
    """Raise unless the programs of `simulator` are installed."""
    if simulator in ("cocotb", "axi"):
        toolchain.require_package("cocotbext.axi" if simulator == "axi" else "cocotb")
        toolchain.program("iverilog")
    else:
        toolchain.verilator()


def _hardware(project_dir: str | Path | None) -> Path:
    return Path(project_dir or latest_project()).expanduser() / "hardware"
