"""What earlier runs left in their folders, for a report: measures, calibration, other results."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop import files
from chop.actions.metrics import METRICS
from chop.cli.failures import UsageError

RESULT, CALIBRATION, PLAN, LAYERS = "result.json", "calibration.csv", "plan.json", "layers"
KNOWN = (*METRICS, "perplexity", "token_agreement")
"""Numbers of a result that are measures of its model."""


def stored_metrics(before: str | None, after: str | None) -> dict[str, list[float]]:
    """Of each metric that earlier runs measured, its values before and after; one where one is.

    Those of a model are in the results of the run that wrote its folder: the last is its own, the
    first that of the model it was made from.
    """
    mine = _measures(after)
    start = _measures(before)[-1:] or mine[:1]
    told = [*start, *mine[-1:]] if before is not None or len(mine) > 1 else mine
    names = [name for name in KNOWN if told and name in told[-1]]
    return {name: [m[name] for m in told if name in m] for name in names}


def _measures(place: str | None) -> list[Mapping[str, Any]]:
    """What a run measured, in order: before it changed the model, after it."""
    found = _result(Path(place)) if place is not None else {}
    stages = found.get("stages")
    rows = list(stages.values()) if isinstance(stages, Mapping) else [found.get("eval")]
    return [row for row in rows if isinstance(row, Mapping) and _known(row)]


def _known(row: Mapping[str, Any]) -> bool:
    return any(isinstance(row.get(name), int | float) for name in KNOWN)


def _result(place: Path) -> Mapping[str, Any]:
    file = place / RESULT
    told = files.read_json(file, UsageError) if file.is_file() else {}
    return told if isinstance(told, Mapping) else {}


def calibration_tables(name: str | None) -> dict[str, Sequence[Mapping[str, Any]]]:
    """What `mase quantize` saw and chose: ranges of operands, and how well layers were rounded."""
    if name is None:
        return {}
    file, rounded = Path(name) / CALIBRATION, _result(Path(name)).get(LAYERS)
    ranges = _read_csv(file) if file.is_file() else []
    layers = rounded if isinstance(rounded, list) else []
    return {
        "Ranges that were seen": ranges,
        "Layers after rounding": [row for row in layers if isinstance(row, Mapping)],
    }


def _read_csv(file: Path) -> list[dict[str, Any]]:
    with file.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    return [{key: _number(value) for key, value in row.items()} for row in rows]


def _number(text: str) -> Any:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def other_runs(names: Sequence[str]) -> dict[str, Any]:
    """The fields of a report that the folders `names` fill: generation and sharding."""
    generation: list[Mapping[str, Any]] = []
    sharding = None
    for name in names:
        place = Path(name)
        told = _result(place)
        if (place / PLAN).is_file():
            sharding = {**files.read_json(place / PLAN, UsageError), "mesh": told.get("mesh")}
        elif "tokens_per_s" in told:
            generation.append(told)
        else:
            raise UsageError(f"--runs {name}: no result of `mase generate` or `mase shard` there.")
    return {"generation": generation, "sharding": sharding}
