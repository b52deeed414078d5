"""Execution of the steps of `mase journey`, with a record that survives interruptions."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.actions.peak_memory import peak_bytes, reset_peak
from chop.cli.commands import COMMANDS
from chop.cli.commands.journey import JourneyConfig
from chop.cli.console import Console
from chop.cli.execute import execute
from chop.cli.failures import explain
from chop.cli.functions import config_of, line_of
from chop.cli.journey_steps import JourneyStep
from chop.cli.journey_table import JOURNEY, shown
from chop.cli.named_objects import thing_of
from chop.cli.session import CommandResult, Session
from chop.errors import CheckpointError, ChopError
from chop.files import read_json, remove_whole, write_whole

Record = dict[str, Any]
DONE, REFUSED, BROKEN = "done", "refused", "failed"


def run_steps(
    config: JourneyConfig, steps: Sequence[JourneyStep], session: Session
) -> list[Record]:
    """Run the steps in order and return their records; a refused step does not end the run.

    The records are written to the output folder after each step. A later run skips the steps that
    have the same settings and come from the same model.
    """
    file, origin = session.out / JOURNEY, _origin(config)
    earlier = _read(file) if config.resume and origin is not None else {}
    records: dict[str, Record] = {}
    performed: set[str] = set()
    for number, step in enumerate(steps, start=1):
        line = line_of(COMMANDS[step.command], step.settings)
        chain = _digest([origin, line, *(records[key]["chain"] for key in step.needs)])
        before, place = earlier.get(step.key), f"{number}/{len(steps)} {step.key}"
        if before is not None and _is_done(before, chain, step) and not performed & {*step.needs}:
            session.console.say(f"{place}: done before ({before['cell']})")
            records[step.key] = before
            continue
        performed.add(step.key)
        session.console.say(f"{place}\n  {line}")
        head = {"variant": step.variant, "step": step.title, "command": line, "chain": chain}
        records[step.key] = {**head, **_perform(step, records, session.console, place)}
        session.console.say(f"  {_summary(records[step.key])}")
        every = {**earlier, **records}.values()
        write_whole(file, json.dumps({"steps": list(every)}, indent=1))
    _remove_scratch(steps, records)
    return list(records.values())


def _perform(
    step: JourneyStep, records: Mapping[str, Record], console: Console, place: str
) -> Record:
    """Run one step and return its outcome, its figures or the reason, its time and its memory."""
    missing = [key for key in step.needs if records[key]["outcome"] != DONE]
    if missing:
        need = records[missing[0]]
        name = need["step"] if need["variant"] == step.variant else missing[0]
        reason = f"needs '{name}', which was {need['outcome']}."
        return _refusal(REFUSED, reason) | {"seconds": 0.0, "peak_bytes": 0, "added_bytes": 0}
    gc.collect()
    reset_peak()
    before, start = peak_bytes(), time.monotonic()
    with console.progress(place):
        record = _attempt(step)
    seconds, peak = time.monotonic() - start, peak_bytes()
    added = max(peak - before, 0)
    if step.shows_memory and record["outcome"] == DONE:
        record["figures"]["added memory (MiB)"] = round(added / 2**20, 1)
        record["cell"] = shown(record["figures"])
    return {**record, "seconds": round(seconds, 2), "peak_bytes": peak, "added_bytes": added}


def _attempt(step: JourneyStep) -> Record:
    try:
        figures = step.figures(_run(step))
    except ChopError as error:
        return _refusal(REFUSED, str(error))
    except Exception as error:  # the end of a command, as in `main`: the exit code tells
        return _refusal(BROKEN, explain(error))
    return {"outcome": DONE, "cell": shown(figures), "figures": figures}


def _run(step: JourneyStep) -> CommandResult:
    """Run the command of a step; its output goes to its own log only."""
    command = COMMANDS[step.command]
    with open(os.devnull, "w") as nowhere:
        silent = Console(is_json=True, is_quiet=True, out=nowhere, err=nowhere)
        return execute(command, config_of(command, step.settings), silent)


def _refusal(outcome: str, reason: str) -> Record:
    return {"outcome": outcome, "cell": outcome, "reason": reason}


def _summary(record: Record) -> str:
    cost = f"{record['seconds']:.1f} s, peak {record['peak_bytes'] / 2**20:,.0f} MiB"
    reason = f": {record['reason']}" if "reason" in record else ""
    return f"{record['cell']}{reason} ({cost})"


# -- resuming ------------------------------------------------------------------------------------


def _read(file: Path) -> dict[str, Record]:
    """Return the records of an earlier run by key; empty if there are none."""
    content = read_json(file, CheckpointError) if file.is_file() else {}
    steps = content.get("steps") if isinstance(content, dict) else None
    rows = steps if isinstance(steps, list) else []
    keys = {"variant", "step", "chain", "outcome", "cell"}
    whole = [row for row in rows if isinstance(row, dict) and keys <= row.keys()]
    return {f"{row['variant']}: {row['step']}": row for row in whole}


def _is_done(before: Record, chain: str, step: JourneyStep) -> bool:
    """Return True for a step with the same settings that was done or refused."""
    if before["chain"] != chain or before["outcome"] == BROKEN:
        return False
    has_files = step.is_scratch or Path(step.settings["out"]).is_dir()
    return before["outcome"] == REFUSED or has_files


def _digest(content: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _origin(config: JourneyConfig) -> list[Any] | None:
    """Return the identity of the model and the data; None if they are objects of this process."""
    names = (config.model, config.dataset)
    if any(thing_of(name) is not None for name in names):
        return None
    return [_files(Path(name)) for name in names if name is not None]


def _files(place: Path) -> list[Any]:
    """Return name, size and time of the files at `place`; empty for a name that is no path."""
    files = [place] if place.is_file() else sorted(f for f in place.glob("*") if f.is_file())
    return [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]


def _remove_scratch(steps: Sequence[JourneyStep], records: Mapping[str, Record]) -> None:
    """Delete the files of checks, unless a failed step will need them again."""
    if all(record["outcome"] != BROKEN for record in records.values()):
        for step in steps:
            if step.is_scratch:
                remove_whole(Path(step.settings["out"]))
