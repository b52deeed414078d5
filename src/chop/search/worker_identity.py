"""Who a worker is, so that others can tell whether it still lives."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

OPEN_TOKENS: set[str] = set()
"""The tokens of the workers that are at work in this process."""


@dataclass(frozen=True)
class WorkerIdentity:
    """Who a worker is: a process on a machine, in one run of the search."""

    host: str
    process: int
    started: int
    token: str
    run: str

    @staticmethod
    def mine(run: str) -> WorkerIdentity:
        """This process."""
        pid = os.getpid()
        return WorkerIdentity(_host(), pid, _start_time(pid) or 0, uuid.uuid4().hex[:12], run)

    def is_dead(self) -> bool | None:
        """Whether the process is gone; None where only heartbeats can tell."""
        if self.host != _host():
            return None
        if self.process == os.getpid():
            return self.token not in OPEN_TOKENS
        return _start_time(self.process) != self.started


def _host() -> str:
    """This machine since its last start, seen from this container."""
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.is_file():
        parts += [boot.read_text().strip()[:8], os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def _start_time(pid: int) -> int | None:
    """When a process started, in ticks; None when it is gone (a number may be given out again)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _signal_check(pid)
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _signal_check(pid: int) -> int | None:
    if Path("/proc/self/stat").is_file():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
