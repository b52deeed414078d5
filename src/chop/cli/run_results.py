"""Results that earlier runs left in their folders, read for a report."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop import files
from chop.actions.metrics import METRICS
from chop.actions.readers import check_hardware, check_sensitivity, check_sweep
from chop.actions.records import read_records
from chop.actions.study_files import check_study
from chop.cli.failures import UsageError
from chop.cli.output import settle
from chop.report.page_parts import with_links

RESULT, CALIBRATION, PLAN, LAYERS = "result.json", "calibration.csv", "plan.json", "layers"
SENSITIVITY = "sensitivity.json"
"""Table from which `mase quantize --bits` chose the widths."""


def stored_metrics(before: str | None, after: str | None) -> dict[str, list[float]]:
    """Return, for each metric that earlier runs measured, its values before and after.

    The last measures in the results of a run are those of the model that it wrote; the first are
    those of the model that it started from.
    """
    mine = _measures(after)
    start = _measures(before)[-1:] or mine[:1]
    rows = [*start, *mine[-1:]] if before is not None or len(mine) > 1 else mine
    names = [name for name in METRICS if rows and name in rows[-1]]
    return {name: [row[name] for row in rows if name in row] for name in names}


def _measures(place: str | None) -> list[Mapping[str, Any]]:
    """Return the measures of a run in order: before it changed the model, after it."""
    result = _result(Path(place)) if place is not None else {}
    stages = result.get("stages")
    rows = list(stages.values()) if isinstance(stages, Mapping) else [result.get("eval")]
    return [
        row
        for row in rows
        if isinstance(row, Mapping)
        and any(isinstance(row.get(name), int | float) for name in METRICS)
    ]


def _result(place: Path) -> Mapping[str, Any]:
    file = place / RESULT
    result = files.read_json(file, UsageError) if file.is_file() else {}
    return result if isinstance(result, Mapping) else {}


def calibration_tables(name: str | None) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the ranges of operands and the rounding errors that `mase quantize` recorded."""
    if name is None:
        return {}
    file, rounded = Path(name) / CALIBRATION, _result(Path(name)).get(LAYERS)
    ranges: list[dict[str, Any]] = []
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as opened:
            rows = list(csv.DictReader(opened))
        ranges = [{key: _number(value) for key, value in row.items()} for row in rows]
    layers = rounded if isinstance(rounded, list) else []
    return {
        "Observed ranges": ranges,
        "Layers after rounding": [row for row in layers if isinstance(row, Mapping)],
    }


def _number(text: str) -> Any:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def other_runs(names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a report that runs of `mase generate` and `mase shard` fill."""
    generation: list[Mapping[str, Any]] = []
    sharding = None
    for name in names:
        place = Path(name)
        result = _result(place)
        if (place / PLAN).is_file():
            sharding = {**files.read_json(place / PLAN, UsageError), "mesh": result.get("mesh")}
        elif "tokens_per_s" in result:
            generation.append(result)
        else:
            raise UsageError(f"--runs {name}: no result of `mase generate` or `mase shard` there.")
    return {"generation": generation, "sharding": sharding}


def _read_json(folder: Path, name: str) -> Mapping[str, Any]:
    """Read the JSON file `name` in a folder, or the file itself."""
    settle(folder)
    file = folder / name if folder.is_dir() else folder
    if not file.is_file():
        raise UsageError(f"{file}: no such file.")
    content: Mapping[str, Any] = files.read_json(file, UsageError)
    return content


def study(place: Path) -> Mapping[str, Any]:
    """Read the study of a search."""
    return check_study(_read_json(place, "study.json"), str(place), UsageError)


def sweep(folder: Path) -> Sequence[dict[str, Any]]:
    """Read the records of a sweep."""
    recorded = sorted(folder.rglob("*.jsonl"))
    if not recorded:
        raise UsageError(f"{folder}: no records of a sweep (*.jsonl).")
    records = [record for file in recorded for record in read_records(file)]
    return check_sweep(records, str(folder), UsageError)


def sensitivity(name: str | None) -> Mapping[str, Any] | None:
    """Read the table that `mase quantize --bits` wrote into the model's folder, if it did."""
    if name is None or not (Path(name) / SENSITIVITY).is_file():
        return None
    table = _read_json(Path(name), SENSITIVITY)
    return check_sensitivity(table, f"{name}/{SENSITIVITY}", UsageError)


def routing(name: str | None) -> Mapping[str, Any] | None:
    """Read the routing of the part that reached the highest clock."""
    if name is None:
        return None
    routed = [_read_json(f, "") for f in sorted(Path(name).glob("hardware/route/*/route.json"))]
    return max(routed, key=lambda record: record.get("mhz", 0), default=None)


def hardware(name: str | None, page_folder: Path) -> Mapping[str, Any] | None:
    """Read the report of a simulated design, with links to its RTL."""
    if name is None:
        return None
    folder = Path(name) / "hardware"
    record = check_hardware(_read_json(folder, "report.json"), f"{folder}/report.json", UsageError)
    return with_links(record, folder, page_folder)
