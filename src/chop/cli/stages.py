"""Work in stages that leave a stamp each: what is done is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.cli.console import Console
from chop.cli.output import FILES, settle, staged
from chop.errors import CheckpointError
from chop.files import read_json, remove_whole, write_whole

STAMP = "stage.json"
Results = dict[str, dict[str, Any]]
"""Stage -> the record it left."""


@dataclass(frozen=True)
class Stage:
    """`run(folder, results)` writes to `folder` and gives a record; `depends` is what it reads.

    A stage is repeated when what it depends on, or the stamp of a stage before it, has changed.
    """

    name: str
    title: str
    run: Callable[[Path, Results], dict[str, Any]]
    depends: Mapping[str, Any]


def run_stages(
    stages: Sequence[Stage], out: Path, console: Console, *, fresh: bool = False
) -> Results:
    """The records of all stages, in order; each is in `<out>/<name>` with its files."""
    results: Results = {}
    chain: list[Any] = []
    for number, stage in enumerate(stages, start=1):
        folder = out / stage.name
        chain.append([stage.name, json.loads(json.dumps(dict(stage.depends)))])
        place = f"{number}/{len(stages)} {stage.title}"
        found = None if fresh else _read(folder, chain)
        if found is not None:
            console.say(f"{place}: done before ({found['summary']})")
        else:
            fresh = True  # what follows works on other files than before
            found = _perform(stage, folder, chain, results, console, place)
            console.say(f"{place}: {found['summary']}")
        results[stage.name] = found
    return results


def _perform(
    stage: Stage, folder: Path, chain: list[Any], results: Results, console: Console, place: str
) -> dict[str, Any]:
    start = time.monotonic()
    remove_whole(folder)
    with console.progress(place), staged(folder) as scratch:
        record = stage.run(scratch, results)
        record["seconds"] = round(time.monotonic() - start, 1)
        written = sorted({*(entry.name for entry in scratch.iterdir()), STAMP})
        stamp = {"chain": chain, "record": record, FILES: written}
        write_whole(scratch / STAMP, json.dumps(stamp, indent=1))
    return record


def _read(folder: Path, chain: list[Any]) -> dict[str, Any] | None:
    """The record of a stage that was done with the same settings; None where it was not."""
    settle(folder)
    file = folder / STAMP
    if not file.is_file():
        return None
    stamp = read_json(file, CheckpointError)
    is_plain = isinstance(stamp, dict) and isinstance(stamp.get("record"), dict)
    if not is_plain or stamp.get("chain") != chain:
        return None  # of other settings, or no stamp of ours: the stage is done again
    record: dict[str, Any] = stamp["record"]
    return record
