"""Simulation of a whole board: UART bits on the pins of its top module, the host program outside.

Verilator runs the top module of the project. The program has a pseudo-terminal, on which the
emitted host program works as it does on a serial port. Bytes can be damaged or lost on purpose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.files import read_json
from chop.hw.boards.board_files import FOLDER, SOURCES
from chop.hw.boards.board_table import get_board
from chop.hw.sim.verilate import build_program

DRIVER = Path(__file__).parent / "board_driver.cpp"
REPLY_SECONDS, FAULTY_SECONDS = 60.0, 4.0
"""Time that the host waits for a reply: a simulated board is slow. With faults, some never come."""


@dataclass(frozen=True)
class BoardRun:
    """Result of the host program on a simulated board."""

    inferences: int
    wrong: int
    faults: Mapping[str, int]
    """Frames that the host sent again, by cause."""
    injected: int
    """Bytes that were damaged, lost or added on purpose."""
    latency: int
    """Cycles of the design's clock from the request to the whole result."""
    cycles: int
    """Simulated cycles of the oscillator."""

    def __str__(self) -> str:
        return (
            f"{self.inferences - self.wrong} of {self.inferences} inferences right over the UART, "
            f"{self.injected} faults injected, {sum(self.faults.values())} noticed"
        )

    def require_right(self) -> BoardRun:
        """Return the run; raise if an inference was wrong."""
        if self.wrong:
            raise HardwareError(f"board: {self}.")
        return self


def simulate_board(
    hardware: Path, *, count: int | None = None, fault_rate: float = 0.0, seed: int = 0,
    timeout: float | None = None,
) -> BoardRun:  # fmt: skip
    """Run the host program of the project in `hardware` against its simulated board.

    `count`: inferences; default: each test vector once. `fault_rate`: share of bytes with a fault,
    in both directions. `timeout`: seconds that the host waits for a reply.
    """
    if not 0 <= fault_rate < 1:
        raise HardwareError(f"board: 'fault_rate' must be from 0 to below 1, got {fault_rate:g}.")
    with running_board(hardware, fault_rate=fault_rate, seed=seed) as (port, ended):
        seconds = timeout or (FAULTY_SECONDS if fault_rate else REPLY_SECONDS)
        host = _run_host(hardware, port, count, seconds)
    return BoardRun(**host, injected=ended["injected"], cycles=ended["cycles"])


@contextmanager
def running_board(
    hardware: Path, *, fault_rate: float = 0.0, seed: int = 0
) -> Iterator[tuple[str, dict[str, int]]]:
    """Simulate a board; yield the name of its serial port, and facts that are there at the end."""
    facts = read_facts(hardware)
    board = get_board(facts["board"])
    clocks = facts["clocks_per_bit"] << board.halvings
    idle = (board.timeout_cycles << board.halvings) + 100 * clocks
    arguments = [str(clocks), str(idle), str(fault_rate), str(seed)]
    child = subprocess.Popen(
        [str(build_board_program(hardware, facts)), *arguments],
        cwd=hardware,  # memory files are named from there
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    ended: dict[str, int] = {}
    try:
        assert child.stdout is not None
        port = child.stdout.readline().strip()
        if not port:
            raise HardwareError(f"{hardware}: the simulated board did not start.")
        yield port, ended
    finally:
        output, _ = child.communicate()  # closes its input, which ends it
        if child.returncode == 0:
            ended |= json.loads(output)


def build_board_program(hardware: Path, facts: Mapping[str, Any]) -> Path:
    """Return the simulator of the board, built if a source changed."""
    folder = hardware.resolve()  # the tools run in another folder
    sources = [path for name in SOURCES for path in sorted((folder / name).glob("*.sv"))]
    return build_program(f"{facts['design']}_board", sources, DRIVER, folder / "sim")


def read_facts(hardware: Path) -> dict[str, Any]:
    """Return the description of the board project in `hardware`."""
    path = hardware / FOLDER / "board.json"
    if not path.is_file():
        raise HardwareError(
            f"{hardware}: no board project. Write one: mase hw … --board NAME, or emit_board."
        )
    facts = read_json(path, HardwareError)
    if not isinstance(facts, dict) or not {"board", "design", "clocks_per_bit"} <= facts.keys():
        raise HardwareError(f"{path}: not the description of a board project.")
    return facts


def _run_host(hardware: Path, port: str, count: int | None, seconds: float) -> dict[str, Any]:
    program = (hardware / FOLDER / "host.py").resolve()
    command = [sys.executable, "-B", str(program), port, "--json", "--timeout", f"{seconds}"]
    command += [] if count is None else ["--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise HardwareError(f"the host program failed ({done.returncode}): {done.stderr.strip()}")
    record = json.loads(done.stdout)
    names = ("inferences", "wrong", "faults", "latency")
    return {name: record[name] for name in names}
