"""Store the results of a benchmark with their provenance: shared by the programs here.

A record has the commit, whether the checkout had changes, a hash of the code that it measures
(`measuring.code`), the machine, the versions, the command and the date.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chop.files import folder_lock
from chop.report.provenance import gather_provenance
from measuring.code import code_hash, is_current, measured

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"


def provenance(name: str, section: str = "", places: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the provenance of a result file, or of a section of it, written by this process.

    `places`: folders and modules that it measures; None: those of `measuring.code.MEASURED`.
    """
    script = Path(sys.argv[0]).resolve()
    place = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    folders = measured(name, section) if places is None else tuple(places)
    code = {"commit": _git("rev-parse", "HEAD"), "folders": list(folders)}
    code |= {"hash": code_hash(folders), "has_changes": bool(_git("status", "--porcelain"))}
    command = shlex.join(["python", str(place), *map(without_place, sys.argv[1:])])
    return {**gather_provenance(), "command": command, "code": code}


def without_place(word: str) -> str:
    """Return a word of a command; of a path outside the checkout only what others can know of it.

    Folders of models and data become MODELS/… and DATA/…; other paths become their last name.
    """
    path = Path(word)
    if not path.is_absolute():
        return word
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    for name in ("models", "data"):
        if name in path.parts[:-1]:
            return "/".join((name.upper(), *path.parts[path.parts.index(name) + 1 :]))
    return path.name


def _git(*words: str) -> str:
    """Return the answer of git; empty outside a checkout."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def save(name: str, results: Any) -> Path:
    """Write `results` with their provenance to `bench/results/<name>.json`."""
    return _write(name, {**provenance(name), "results": results})


def save_section(
    name: str, section: str, results: Any, *, places: Sequence[str] | None = None
) -> Path:
    """Write `results` with their provenance under `section` of `bench/results/<name>.json`.

    The file is a mapping by section. The other sections stay, also those that another process
    writes at the same time. `places`: see `provenance`.
    """
    record = {**provenance(name, section, places), "results": results}
    RESULTS.mkdir(exist_ok=True)
    with folder_lock(RESULTS):
        file = RESULTS / f"{name}.json"
        sections = json.loads(file.read_text()) if file.exists() else {}
        sections[section] = record
        return _write(name, dict(sorted(sections.items())))


def read_section(name: str, section: str) -> dict[str, Any]:
    """Return the results under `section` of a result file; empty if there are none."""
    file = RESULTS / f"{name}.json"
    record = json.loads(file.read_text()).get(section, {}) if file.exists() else {}
    found: dict[str, Any] = record.get("results", record)
    return found


def is_measured(name: str, section: str, settings: dict[str, Any]) -> bool:
    """Return True if a section has results of today's code with these settings.

    `settings` are fields of its results.
    """
    file = RESULTS / f"{name}.json"
    record = json.loads(file.read_text()).get(section) if file.exists() else None
    if record is None or not is_current(name, record):
        return False
    found = record["results"]
    return all(found.get(key) == value for key, value in settings.items())


def _write(name: str, content: dict[str, Any]) -> Path:
    """Replace the result file in one step."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    draft.replace(file)
    return file
