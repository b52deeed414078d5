"""Provenance of a result: versions, command, date and machine."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("masegraph", "torch", "transformers", "numpy")


def gather_provenance(**more: Any) -> dict[str, Any]:
    """Return versions, command, date and machine of this process, and `more` (seed, config …)."""
    script = Path(sys.argv[0])
    is_module = script.parts[-3:] == ("chop", "cli", "__main__.py")  # python -m chop.cli
    program = "mase" if is_module else script.name or "python"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join([program, *sys.argv[1:]]),
        **more,
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "processor": _processor(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "system": f"{platform.system()} {platform.release()}",
        },
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
