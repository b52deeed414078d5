"""Peak memory of this process, measured by step."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Value for `clear_refs` that resets the peak (man 5 proc)."""


def reset_peak() -> None:
    """Start a new measurement, where the system can; elsewhere the peak is that of the process."""
    with contextlib.suppress(OSError):
        CLEAR.write_text(RESET_PEAK)


def peak_bytes() -> int:
    """Return the largest resident memory since `reset_peak`, in bytes."""
    return _status("VmHWM") or _process_peak()


def resident_bytes() -> int:
    """Return the resident memory now, in bytes; where it is unknown, its peak."""
    return _status("VmRSS") or _process_peak()


def _status(key: str) -> int | None:
    """Return a value of Linux's process status, in bytes; None elsewhere."""
    if not STATUS.is_file():
        return None
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return int(lines[key].split()[0]) * 1024 if key in lines else None


def _process_peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage: bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
