"""Where and how a benchmark ran, and writing its results down: shared by the scripts here."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "numpy")


def provenance() -> dict[str, Any]:
    """Machine, versions, command and date of this run."""
    script = Path(sys.argv[0])
    place = Path("bench") / script.name if script.parent.name == "bench" else script
    return {
        "machine": {
            "processor": _processor(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": _gpu(),
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "command": shlex.join(["python", str(place), *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def save(name: str, results: Any) -> Path:
    """Write `results` with their provenance to `bench/results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({**provenance(), "results": results}, indent=2) + "\n")
    return file


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())
