"""Stages of long work: each leaves a stamp, and a finished stage is not repeated."""

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
"""Stage -> its record."""


@dataclass(frozen=True)
class DemoStage:
    """`run(folder, results)` writes to `folder` and returns a record.

    A stage is repeated if the settings in `depends`, or an earlier stage, have changed.
    """

    name: str
    title: str
    run: Callable[[Path, Results], dict[str, Any]]
    depends: Mapping[str, Any]


def run_stages(
    stages: Sequence[DemoStage], out: Path, console: Console, *, fresh: bool = False
) -> Results:
    """Run the stages in order and return their records; files go to `<out>/<name>`."""
    results: Results = {}
    chain: list[Any] = []
    for number, stage in enumerate(stages, start=1):
        folder = out / stage.name
        chain.append([stage.name, json.loads(json.dumps(dict(stage.depends)))])
        place = f"{number}/{len(stages)} {stage.title}"
        record = None if fresh else _read(folder, chain)
        if record is not None:
            console.say(f"{place}: done before ({record['summary']})")
        else:
            fresh = True  # the stages that follow read new files
            record = _perform(stage, folder, chain, results, console, place)
            console.say(f"{place}: {record['summary']}")
        results[stage.name] = record
    return results


def _perform(
    stage: DemoStage, folder: Path, chain: list[Any], results: Results, console: Console, place: str
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
    """Return the record of a stage that was done with the same settings, or None."""
    settle(folder)
    file = folder / STAMP
    if not file.is_file():
        return None
    stamp = read_json(file, CheckpointError)
    is_plain = isinstance(stamp, dict) and isinstance(stamp.get("record"), dict)
    if not is_plain or stamp.get("chain") != chain:
        return None  # other settings, or a foreign file: repeat the stage
    record: dict[str, Any] = stamp["record"]
    return record
