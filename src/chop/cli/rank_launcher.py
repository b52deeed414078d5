"""Start of one process per device on this machine, and their end: all of them, or none.

A process that is killed or fails ends the others within seconds. The processes also end if this
one is killed. Nothing heavy is imported here: the processes import what they need.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chop.cli.console import Console
from chop.cli.failures import FAILED, OK

RANK, WORLD_SIZE, LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"
"""Variables of torchrun; `chop.distributed.process_group` reads them."""
MEETING, STARTER = "MASE_MEETING", "MASE_STARTER"
"""Variables of processes that this module starts: their meeting point, and the starter's id."""
THREADS = "OMP_NUM_THREADS"
POLL_S = 0.05
GRACE_S = 2.0
"""Seconds that a process has to end after it was asked to."""
ERRORS = 2000
"""Characters of a process's last messages that are shown."""


def is_started() -> bool:
    """Return True if torchrun, accelerate or this module has started this process."""
    return RANK in os.environ and WORLD_SIZE in os.environ


def own_rank() -> int:
    """Return the rank of this process; 0 if nobody started several."""
    rank = os.environ.get(RANK, "0")
    return int(rank) if is_started() and rank.isdigit() else 0


def processes_of(config: Any) -> int:
    """Return the number of processes that a configuration asks for."""
    return int(getattr(config, "processes", 1))


class StartedProcess(Protocol):
    """The parts of `subprocess.Popen` that are used."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class Rank:
    """One started process; `errors`: file with its messages, None if they are shown."""

    number: int
    process: StartedProcess
    errors: Path | None

    def last_words(self) -> str:
        """Return the last messages of the process."""
        if self.errors is None or not self.errors.is_file():
            return ""
        return self.errors.read_text(errors="replace")[-ERRORS:].strip()

    def end(self, code: int) -> str:
        """Return how the process ended, as text."""
        who = f"rank {self.number} (process {self.process.pid})"
        if code >= 0:
            return f"{who} ended with exit code {code}"
        return f"{who} was killed by signal {-code} ({signal.Signals(-code).name})"


Start = Callable[[Sequence[str], Mapping[str, str], Path | None], StartedProcess]
"""Function that starts `mase words` with additional variables, and a file for its messages."""


def start_program(
    words: Sequence[str], variables: Mapping[str, str], errors: Path | None
) -> StartedProcess:
    """Start `mase words` as a program of its own; its messages are shown without a file."""
    command = [sys.executable, "-m", "chop.cli", *words]
    environment = {**os.environ, **variables}
    if errors is None:
        return subprocess.Popen(command, env=environment)
    with errors.open("wb") as written:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=written,
        )


def launch(count: int, words: Sequence[str], console: Console, start: Start = start_program) -> int:
    """Run `mase words` in `count` processes; return the exit code of the whole.

    The first process prints. If one ends before its work is done, the others are stopped, and a
    message says which one it was.
    """
    console.note(f"starts {count} processes on this machine")
    with tempfile.TemporaryDirectory(prefix="mase_ranks") as folder:
        ranks: list[Rank] = []
        try:
            for number in range(count):
                errors = Path(folder, f"rank{number}.err") if number else None
                variables = _variables(number, count, Path(folder))
                ranks.append(Rank(number, start(words, variables, errors), errors))
            return _supervise(ranks, console)
        finally:
            _stop(ranks)


def _variables(number: int, count: int, folder: Path) -> dict[str, str]:
    """Return the variables by which a process finds its place."""
    own = {
        RANK: str(number),
        LOCAL_RANK: str(number),
        WORLD_SIZE: str(count),
        MEETING: str(folder / "meeting"),
        STARTER: str(os.getpid()),
    }
    return own if THREADS in os.environ else {THREADS: _threads(count), **own}


def _threads(count: int) -> str:
    return str(max(1, (os.cpu_count() or 1) // count))


def _supervise(ranks: Sequence[Rank], console: Console) -> int:
    """Wait for all processes, or for the first that fails."""
    while True:
        codes = [rank.process.poll() for rank in ranks]
        if all(code == OK for code in codes):
            return OK
        time.sleep(POLL_S)
        if any(code not in (None, OK) for code in codes):
            # Looked at again: a killed process may be seen after those that missed it.
            ends = {rank: rank.process.poll() for rank in ranks}
            failed = {rank: code for rank, code in ends.items() if code not in (None, OK)}
            return _explain(failed, len(ranks), console)


def _explain(failed: Mapping[Rank, int | None], count: int, console: Console) -> int:
    """Print which process ended first and why; a killed one is the cause if there is one."""
    rank, code = min(failed.items(), key=lambda pair: pair[1] or 0)
    assert code is not None, "a failed process has an exit code"
    if code > 0 and rank.errors is None:
        return code  # the first process has printed its own message
    words = rank.last_words()
    console.fail(
        f"{rank.end(code)}; the other {count - 1} were stopped. Run the same command again to "
        f"resume from the last checkpoint.{f' Its last messages: {words}' if words else ''}"
    )
    return code if code > 0 else FAILED


def _stop(ranks: Sequence[Rank]) -> None:
    """End all processes that still run: ask first, then kill."""
    running = [rank.process for rank in ranks if rank.process.poll() is None]
    for process in running:
        process.terminate()
    ends = time.monotonic() + GRACE_S
    for process in running:
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_with_starter() -> None:
    """End this process at once when the process that started it is gone."""
    starter = os.environ.get(STARTER, "")
    if starter.isdigit():
        threading.Thread(target=_watch, args=(int(starter),), daemon=True).start()


def _watch(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(10 * POLL_S)
    os._exit(FAILED)
