"""Identity of a worker, by which others detect that it died."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

OPEN_TOKENS: set[str] = set()
"""Tokens of the active workers in this process."""


@dataclass(frozen=True)
class WorkerIdentity:
    """Process on a machine, in one run of the search."""

    host: str
    process: int
    started: int
    token: str
    run: str

    @staticmethod
    def mine(run: str) -> WorkerIdentity:
        """Return the identity of this process."""
        pid = os.getpid()
        return WorkerIdentity(_host(), pid, _start_time(pid) or 0, uuid.uuid4().hex[:12], run)

    def is_dead(self) -> bool | None:
        """Return True if the process is gone; None if only heartbeats can show it."""
        if self.host != _host():
            return None
        if self.process == os.getpid():
            return self.token not in OPEN_TOKENS
        return _start_time(self.process) != self.started


def _host() -> str:
    """Return a name of this machine since its last boot, in this container."""
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.is_file():
        parts += [boot.read_text().strip()[:8], os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in ticks, which detects reused ids; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").is_file() else _signal_check(pid)
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _signal_check(pid: int) -> int | None:
    """Return 0 if the process exists, on a system without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
