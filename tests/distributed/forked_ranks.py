"""Commands on several processes that are forked from this one, which has imported torch already.

A torch built for CUDA starts threads with its first gradient, even without a device, and refuses
gradients in processes forked after it: there each process is a program of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from chop.cli.console import Console
from chop.cli.main import main
from chop.cli.rank_launcher import launch


class ForkedProcess:
    """A forked process with the interface of `subprocess.Popen`."""

    def __init__(self, run: Callable[[], int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self.returncode: int | None = None
        if self.pid == 0:
            code = 1
            try:
                code = run()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        ends = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > ends:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)


Started = ForkedProcess | subprocess.Popen[bytes]


@dataclass
class ForkedRun:
    """One run of `mase words` on several processes; `shown`: file with all that they print."""

    words: list[str]
    shown: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    ranks: list[Started] = field(default_factory=list)

    def start(
        self, words: Sequence[str], variables: Mapping[str, str], errors: Path | None
    ) -> Started:
        """Start one process, as `chop.cli.rank_launcher.start_program` does."""

        added = {**variables, **self.variables}
        handle = os.open(errors or self.shown, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def run() -> int:
            os.environ.update(added)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            return main(list(words))

        process: Started
        if torch.version.cuda:
            program = [sys.executable, "-m", "chop.cli", *words]
            process = subprocess.Popen(
                program, env={**os.environ, **added}, stdout=handle, stderr=handle
            )
        else:
            process = ForkedProcess(run)
        os.close(handle)
        self.ranks.append(process)
        return process

    def launch(self, count: int) -> tuple[int, str]:
        """Run to the end; return the exit code and the messages of the launcher."""
        messages = io.StringIO()
        code = launch(count, self.words, Console(is_quiet=True, err=messages), self.start)
        return code, messages.getvalue()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let forked processes compute with one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
