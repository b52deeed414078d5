"""Run jobs in forked processes with limits on memory and time.

A job that needs more than the limits is reported as `OVER`, whatever else it did: its process is
killed where it does not end, and a new one goes on with the next job.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

OVER = "over the limits"
PAGE = resource.getpagesize()
REFUSALS = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")
"""Words of errors that libraries raise if the system grants no more memory."""

Verdict = tuple[str, str]
"""One word, and details."""
Run = Callable[[Any], Verdict]


@dataclass(frozen=True)
class Limits:
    """Bytes of memory beyond those the process has, seconds of CPU time, seconds of waiting.

    CPU time is what a file costs; the wall clock of a busy machine says little. `wall` ends jobs
    that wait for something.
    """

    memory: int = 1 << 30
    cpu: float = 10.0
    wall: float = 120.0


LIMITS = Limits()


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, says that memory ran out."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or any(words in str(seen) for words in REFUSALS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


# -- in the forked process ---------------------------------------------------------------------


def _status(key: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def run_within(run: Run, job: Any, limits: Limits = LIMITS) -> Verdict:
    """Run one job in this process; too much CPU time ends the process."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is used now
    before, start = _status("VmRSS"), time.process_time()
    _limit(resource.RLIMIT_AS, _status("VmSize") + limits.memory)
    _limit(resource.RLIMIT_CPU, math.ceil(start + limits.cpu) + 1)
    try:
        found = run(job)
    except MemoryError as error:
        found = (OVER, f"memory: {error}")
    finally:
        _limit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS)[1])
    grown, seconds = _status("VmHWM") - before, time.process_time() - start
    if grown > limits.memory:
        return OVER, f"memory: {grown / 2**20:.0f} MiB; {found}"
    return (OVER, f"time: {seconds:.1f} s; {found}") if seconds > limits.cpu else found


def _answer_yes() -> None:
    """Replace standard input by a long list of "y": a question that is asked is answered."""
    with tempfile.TemporaryFile("w+") as answers:
        answers.write("y\n" * 10_000)
        answers.seek(0)
        os.dup2(answers.fileno(), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # lives as long as the process


def _serve(pipe: Connection, jobs: Sequence[Any], run: Run, limits: Limits) -> None:
    torch.set_num_threads(1)  # threads of the parent process are not there
    _answer_yes()
    while (number := pipe.recv()) is not None:
        pipe.send(run_within(run, jobs[number], limits))


# -- in the process that starts them -------------------------------------------------------------


class _Worker:
    """A forked process, and the job that it runs."""

    def __init__(self, jobs: Sequence[Any], run: Run, limits: Limits) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, jobs, run, limits), daemon=True)
        self.process.start()
        theirs.close()
        self.number, self.deadline = -1, math.inf
        self.limits = limits

    def start(self, number: int) -> None:
        """Begin a job."""
        self.number, self.deadline = number, time.monotonic() + self.limits.wall
        self.pipe.send(number)

    def verdict(self) -> Verdict | None:
        """Return the verdict on the job, or None while it runs; a dead process has one too."""
        try:
            if self.pipe.poll():
                found: Verdict = self.pipe.recv()
                return found
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return OVER, f"the process ended: {name}"
        if time.monotonic() < self.deadline:
            return None
        self.process.kill()
        self.process.join()
        return OVER, f"time: no end within {self.limits.wall:.0f} s"

    def stop(self) -> None:
        """End the process."""
        if self.process.is_alive():
            self.pipe.send(None)
            self.process.join()
        self.pipe.close()


def run_all(
    jobs: Sequence[Any], run: Run, *, processes: int = 1, limits: Limits = LIMITS
) -> Iterator[tuple[int, Verdict]]:
    """Yield the number of each job and the verdict on it, as they end."""
    waiting = iter(range(len(jobs)))
    workers: list[_Worker] = []
    try:
        for number in waiting:
            workers.append(_Worker(jobs, run, limits))
            workers[-1].start(number)
            if len(workers) == processes:
                break
        while workers:
            wait([worker.pipe for worker in workers], timeout=1.0)
            for worker in list(workers):
                found = worker.verdict()
                if found is None:
                    continue
                yield worker.number, found
                workers.remove(worker)
                next_worker = _go_on(worker, next(waiting, None), jobs, run)
                workers += [] if next_worker is None else [next_worker]
    finally:
        for worker in workers:
            worker.process.kill()


def _go_on(worker: _Worker, number: int | None, jobs: Sequence[Any], run: Run) -> _Worker | None:
    """Give the next job to a worker, or to a new one in the place of one that ended."""
    if number is None:
        worker.stop()
        return None
    alive = worker if worker.process.is_alive() else _Worker(jobs, run, worker.limits)
    alive.start(number)
    return alive
