"""Writing down what a benchmark found, with where and how it ran: shared by the scripts here."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from chop.report.provenance import gather_provenance

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, Any]:
    """Machine, versions, command (as from the project's folder) and date of this run."""
    script = Path(sys.argv[0])
    place = Path("bench") / script.name if script.parent.name == "bench" else script
    return {**gather_provenance(), "command": shlex.join(["python", str(place), *sys.argv[1:]])}


def save(name: str, results: Any) -> Path:
    """Write `results` with their provenance to `bench/results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({**provenance(), "results": results}, indent=2) + "\n")
    return file


def save_section(name: str, section: str, results: Any) -> Path:
    """Write `results` with their provenance under `section` of `bench/results/<name>.json`.

    The file is a mapping by section; what other commands wrote into it stays.
    """
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known[section] = {**provenance(), "results": results}
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    draft.replace(file)
    return file
