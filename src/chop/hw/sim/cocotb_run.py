"""Runs of the emitted cocotb test bench, on Icarus or on a Verilator that cocotb supports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from chop import toolchain
from chop.errors import HardwareError
from chop.hw.design.folders import INTERFACES
from chop.registry import suggest

BENCH = Path(__file__).parent / "bench_top.py"
AXI_BENCH = INTERFACES / "bench_axi.py"
HOST_PROGRAM = INTERFACES / "reload_host.py"
"""The program of a host that writes weights at run time; test benches import it."""
RELOAD_PROGRAM = INTERFACES / "bench_reload.py"
CLOCK_PROGRAM = INTERFACES / "bench_clocks.py"
PROGRAMS = (BENCH, AXI_BENCH, RELOAD_PROGRAM, CLOCK_PROGRAM, HOST_PROGRAM)
"""Python programs of emitted folders."""
OLDEST_VERILATOR = (5, 36)
"""The first Verilator whose interface cocotb 2 compiles against."""
SIMULATORS = ("icarus", "verilator")

# In a child process: cocotb changes the environment, and its runner must not see pytest.
_CHILD = """
import sys
from pathlib import Path
from cocotb_tools.runner import get_runner
name, hardware, top, waves, bench, build = sys.argv[1:]
hardware, waves, build = Path(hardware), waves == "1", Path(build)
bench = hardware / bench
sys.path.insert(0, str(bench.parent))
runner = get_runner(name)
# cocotb makes every signal public, so that Verilator cannot split those marked for it
arguments = ["-g2012"] if name == "icarus" else ["-Wno-SPLITVAR"]
folders = [hardware / "rtl"] + ([bench.parent] if bench.parent.name == "axi" else [])
sources = [file for folder in folders for file in sorted(folder.glob("*.sv"))]
runner.build(sources=sources, hdl_toplevel=top, build_dir=build,
             build_args=arguments, waves=waves, timescale=("1ns", "1ps"), always=True)
runner.test(hdl_toplevel=top, test_module=bench.stem, build_dir=build, test_dir=hardware,
            results_xml=str(build / "results.xml"), waves=waves)
"""


@dataclass(frozen=True)
class CocotbResult:
    """Tests run and failed."""

    simulator: str
    tests: int
    failures: tuple[str, ...]


def run_cocotb(
    directory: Path,
    *,
    top: str = "top",
    simulator: str = "icarus",
    waves: bool = False,
    bench: str = "test/test_top.py",
    settings: Mapping[str, str] | None = None,
) -> CocotbResult:
    """Run the `bench` of the hardware directory; raise unless every test passed.

    `settings`: environment variables for the bench.
    """
    if simulator not in SIMULATORS:
        raise HardwareError(
            f"cocotb: unknown simulator '{simulator}'. {suggest(simulator, SIMULATORS)}"
        )
    toolchain.require_package("cocotb")
    if bench.startswith("axi/"):
        toolchain.require_package("cocotbext.axi")
    environment = {**os.environ, **(settings or {})}
    if simulator == "icarus":
        toolchain.program("iverilog")
    else:
        environment |= _verilator_environment()
    directory = directory.resolve()
    build = directory / "sim" / f"cocotb-{simulator}-{Path(bench).stem}"
    results = build / "results.xml"
    results.unlink(missing_ok=True)
    words = (simulator, str(directory), top, str(int(waves)), bench, str(build))
    command = [sys.executable, "-c", _CHILD, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if not results.exists():
        output = (done.stdout + done.stderr).strip()
        raise HardwareError(f"cocotb did not run: {output[-2000:]}")
    return _read(results, simulator)


def _verilator_environment() -> dict[str, str]:
    tool = toolchain.verilator()
    if tool.number() < OLDEST_VERILATOR:
        oldest = ".".join(str(part) for part in OLDEST_VERILATOR)
        raise HardwareError(
            f"cocotb: Verilator {tool.version()} is too old, {oldest} or later is needed. "
            f"Use simulator='icarus', or the native simulation."
        )
    return tool.environment()


def _read(results: Path, simulator: str) -> CocotbResult:
    """Read the results; the runner itself passes silently when no test was found."""
    cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    if not cases or failed:
        messages = [f"{case.get('name')}: {_reason(case)}" for case in failed]
        raise HardwareError(
            f"cocotb: {len(failed)} of {len(cases)} tests failed. {' '.join(messages)}"
        )
    return CocotbResult(simulator, len(cases), ())


def _reason(case: ElementTree.Element) -> str:
    """Return the first line of what a failed test says."""
    for kind in ("failure", "error"):
        child = case.find(kind)
        if child is not None:
            text = child.get("error_msg") or child.get("message") or child.text or ""
            return text.strip().partition("\n")[0]
    return ""
