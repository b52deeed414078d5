"""Fuzzing of the ports of an emitted AXI wrapper in simulation."""

from __future__ import annotations

from pathlib import Path

from chop.errors import HardwareError
from chop.files import read_json
from chop.hw.design.folders import INTERFACES
from chop.hw.interfaces.axi_wrapper import FOLDER
from chop.hw.sim.cocotb_run import run_cocotb
from chop.hw.sim.emit import read_interface

PROGRAM = INTERFACES / "bench_fuzz.py"


def fuzz_ports(directory: Path, accesses: int, *, seed: int = 0) -> dict[str, int]:
    """Do `accesses` random reads and writes, and transfers beside them; return their counts.

    `directory` has a design without a port for weights, its test vectors and its wrapper with one
    clock. Raise if an answer, an output or a counter is wrong, a rule of AXI is broken, or a port
    hangs.
    """
    interface = read_interface(directory)
    if interface.reload or (directory / FOLDER / "async_fifo.sv").exists():
        raise HardwareError(
            f"{directory}: only wrappers with one clock and without --weights reload are fuzzed."
        )
    bench = directory / FOLDER / "test_fuzz.py"
    bench.write_text(PROGRAM.read_text())
    try:
        name = f"{FOLDER}/{bench.name}"
        settings = {"MASE_FUZZ": f"{accesses} {seed}"}
        run_cocotb(directory, top=f"{interface.name}_axi", bench=name, settings=settings)
    finally:
        bench.unlink()
    counts: dict[str, int] = read_json(directory / "sim" / "fuzz.json", HardwareError)
    return counts
