"""Checks of result files, which other programs may have written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chop.actions.study_files import NUMBER, check_study, field, want
from chop.actions.sweeps import AFTER, BEFORE, SWEEPS
from chop.errors import ChopError, DataError
from chop.files import read_json, shown


def read_study(file: Path, error: type[ChopError] = DataError) -> dict[str, Any]:
    """Return the study in a `study.json`."""
    return check_study(read_json(file, error), str(file), error)


def check_sweep(
    records: Sequence[Any], where: str, error: type[ChopError] = DataError
) -> Sequence[Any]:
    """Return `records` if they are those of sweeps, with numbers as results, or raise."""
    for index, record in enumerate(records):
        place = f"{where}[{index}]"
        want(record, dict, place, error)
        name = field(record, "sweep", str, place, error)
        if name not in SWEEPS:
            raise error(f"{place}.sweep: {shown(name)}. Allowed: {', '.join(SWEEPS)}.")
        for key in (SWEEPS[name].axis, *SWEEPS[name].variants):
            if key not in record:
                raise error(f"{place}: key '{key}' is missing.")
        want(record[SWEEPS[name].axis], NUMBER, f"{place}.{SWEEPS[name].axis}", error)
        for key, value in record.items():
            if key in (BEFORE, AFTER) and value is not None:
                want(value, NUMBER, f"{place}.{key}", error)
    return records


_LOSS = {"layer": str, "format": str, "bits": NUMBER, "elements": int, "loss": NUMBER}


def check_sensitivity(
    content: Any, where: str, error: type[ChopError] = DataError
) -> dict[str, Any]:
    """Return a `sensitivity.json`: losses of formats in layers, and the chosen formats."""
    want(content, dict, where, error)
    pairs: set[tuple[str, str]] = set()
    for index, row in enumerate(field(content, "table", list, where, error)):
        place = f"{where}.table[{index}]"
        want(row, dict, place, error)
        for key, kind in _LOSS.items():
            value = field(row, key, kind, place, error)
            if kind is not str and not 0 <= value < float("inf"):
                raise error(f"{place}.{key}: {shown(value)}. Allowed: 0 or more.")
        pairs.add((row["layer"], row["format"]))
    if not pairs:
        raise error(f"{where}.table: there is no layer in it.")
    for layer, form in field(content, "assignment", dict, where, error).items():
        if not isinstance(form, str) or (layer, form) not in pairs:
            raise error(f"{where}.assignment.{layer}: {shown(form)} is not in the table.")
    for key in ("bits", "loss"):
        if key in content:
            want(content[key], NUMBER, f"{where}.{key}", error)
    checked: dict[str, Any] = content
    return checked


_STAGE = {"stage": str, "module": str, "cycles": int, "multipliers": int}


def check_hardware(content: Any, where: str, error: type[ChopError] = DataError) -> dict[str, Any]:
    """Return the `report.json` of emitted hardware, whose streams must name its stages."""
    want(content, dict, where, error)
    names: list[str] = []
    for key in ("inputs", "outputs", "stages", "streams"):
        want(content.get(key, []), (list, dict), f"{where}.{key}", error)
    for side in ("inputs", "outputs"):
        for name in content.get(side, ()):
            want(name, str, f"{where}.{side}", error)
            names.append(name)
    for index, stage in enumerate(content.get("stages", ())):
        place = f"{where}.stages[{index}]"
        want(stage, dict, place, error)
        for key, kind in _STAGE.items():
            if key in stage or key in ("stage", "module") or "depth" not in stage:
                field(stage, key, kind, place, error)
        names.append(stage["stage"])
    for index, stream in enumerate(content.get("streams", ())):
        place = f"{where}.streams[{index}]"
        want(stream, dict, place, error)
        for key in ("source", "target"):
            if field(stream, key, str, place, error) not in names:
                raise error(f"{place}.{key}: there is no stage {shown(stream[key])}.")
    checked: dict[str, Any] = content
    return checked
