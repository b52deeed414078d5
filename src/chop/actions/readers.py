"""Result files that others may have written, checked before anything is drawn or built of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.actions.sweeps import AFTER, BEFORE, SWEEPS
from chop.actions.trials import CONSTRAINTS, DIRECTIONS
from chop.errors import ChopError, DataError
from chop.files import read_json, shown

_NUMBER = (int, float)


def read_study(file: Path, error: type[ChopError] = DataError) -> dict[str, Any]:
    """The study in a `study.json`."""
    return check_study(read_json(file, error), str(file), error)


def check_study(study: Any, where: str, error: type[ChopError] = DataError) -> dict[str, Any]:
    """`study`, which has the form that `chop.actions.trials` describes."""
    _want(study, dict, where, error)
    objectives = _field(study, "objectives", dict, where, error)
    if not objectives:
        raise error(f"{where}.objectives: there are none.")
    for name, way in objectives.items():
        if way not in tuple(DIRECTIONS):
            allowed = ", ".join(DIRECTIONS)
            raise error(f"{where}.objectives.{name}: {shown(way)}. Allowed: {allowed}.")
    if "name" in study:
        _want(study["name"], str, f"{where}.name", error)
    seen: set[int] = set()
    for index, trial in enumerate(_field(study, "trials", list, where, error)):
        place = f"{where}.trials[{index}]"
        _check_trial(trial, objectives, place, error)
        if trial["number"] in seen:
            raise error(f"{place}.number: {trial['number']} is there twice.")
        seen.add(trial["number"])
    _check_importance(study.get("importance"), f"{where}.importance", error)
    found: dict[str, Any] = study
    return found


def _check_trial(
    trial: Any, objectives: Mapping[str, str], where: str, error: type[ChopError]
) -> None:
    _want(trial, dict, where, error)
    number = _field(trial, "number", int, where, error)
    if isinstance(number, bool) or number < 0:
        raise error(f"{where}.number: expected a number from 0 on, got {shown(number)}.")
    state = _field(trial, "state", str, where, error)
    values = _field(trial, "values", dict, where, error) if trial.get("values") else {}
    for name, value in values.items():
        if value is not None:
            _want(value, _NUMBER, f"{where}.values.{name}", error)
    missing = [name for name in objectives if values.get(name) is None]
    if state == "complete" and missing:
        raise error(f"{where}.values: a complete trial has a value of '{missing[0]}'.")
    for key in ("params", "attributes"):
        _field(trial, key, dict, where, error)
    stated = trial["attributes"].get(CONSTRAINTS, {})
    _want(stated, dict, f"{where}.attributes.{CONSTRAINTS}", error)
    for name, value in stated.items():
        _want(value, _NUMBER, f"{where}.attributes.{CONSTRAINTS}.{name}", error)


def _check_importance(given: Any, where: str, error: type[ChopError]) -> None:
    if given is None:
        return
    _want(given, dict, where, error)
    flat = [v for v in given.values() if not isinstance(v, dict)]
    nested = [x for v in given.values() if isinstance(v, dict) for x in v.values()]
    if flat and nested:
        raise error(f"{where}: numbers by parameter, or by objective and parameter; not both.")
    for value in (*flat, *nested):
        _want(value, _NUMBER, where, error)


def check_sweep(
    records: Sequence[Any], where: str, error: type[ChopError] = DataError
) -> Sequence[Any]:
    """`records`, which are those of sweeps: known axis, numbers as results."""
    for index, record in enumerate(records):
        place = f"{where}[{index}]"
        _want(record, dict, place, error)
        name = _field(record, "sweep", str, place, error)
        if name not in SWEEPS:
            raise error(f"{place}.sweep: {shown(name)}. Allowed: {', '.join(SWEEPS)}.")
        for key in (SWEEPS[name].axis, *SWEEPS[name].variants):
            if key not in record:
                raise error(f"{place}: key '{key}' is missing.")
        _want(record[SWEEPS[name].axis], _NUMBER, f"{place}.{SWEEPS[name].axis}", error)
        for key, value in record.items():
            if key in (BEFORE, AFTER) and value is not None:
                _want(value, _NUMBER, f"{place}.{key}", error)
    return records


_LOSS = {"layer": str, "format": str, "bits": _NUMBER, "elements": int, "loss": _NUMBER}


def check_sensitivity(told: Any, where: str, error: type[ChopError] = DataError) -> dict[str, Any]:
    """A `sensitivity.json`: losses of formats in layers, and the formats that were chosen."""
    _want(told, dict, where, error)
    known: set[tuple[str, str]] = set()
    for index, row in enumerate(_field(told, "table", list, where, error)):
        place = f"{where}.table[{index}]"
        _want(row, dict, place, error)
        for key, kind in _LOSS.items():
            value = _field(row, key, kind, place, error)
            if kind is not str and not 0 <= value < float("inf"):
                raise error(f"{place}.{key}: {shown(value)}. Allowed: 0 or more.")
        known.add((row["layer"], row["format"]))
    if not known:
        raise error(f"{where}.table: there is no layer in it.")
    for layer, form in _field(told, "assignment", dict, where, error).items():
        if not isinstance(form, str) or (layer, form) not in known:
            raise error(f"{where}.assignment.{layer}: {shown(form)} is not in the table.")
    for key in ("bits", "loss"):
        if key in told:
            _want(told[key], _NUMBER, f"{where}.{key}", error)
    found: dict[str, Any] = told
    return found


_STAGE = {"stage": str, "module": str, "cycles": int, "multipliers": int}


def check_hardware(told: Any, where: str, error: type[ChopError] = DataError) -> dict[str, Any]:
    """The `report.json` of emitted hardware: its stages and streams name each other."""
    _want(told, dict, where, error)
    names: list[str] = []
    for key in ("inputs", "outputs", "stages", "streams"):
        _want(told.get(key, []), (list, dict), f"{where}.{key}", error)
    for side in ("inputs", "outputs"):
        for name in told.get(side, ()):
            _want(name, str, f"{where}.{side}", error)
            names.append(name)
    for index, stage in enumerate(told.get("stages", ())):
        place = f"{where}.stages[{index}]"
        _want(stage, dict, place, error)
        for key, kind in _STAGE.items():
            if key in stage or key in ("stage", "module") or "depth" not in stage:
                _field(stage, key, kind, place, error)
        names.append(stage["stage"])
    for index, stream in enumerate(told.get("streams", ())):
        place = f"{where}.streams[{index}]"
        _want(stream, dict, place, error)
        for key in ("source", "target"):
            if _field(stream, key, str, place, error) not in names:
                raise error(f"{place}.{key}: there is no stage {shown(stream[key])}.")
    found: dict[str, Any] = told
    return found


def _field(record: Mapping[str, Any], key: str, kind: Any, where: str, error: Any) -> Any:
    if key not in record:
        raise error(f"{where}: key '{key}' is missing.")
    _want(record[key], kind, f"{where}.{key}", error)
    return record[key]


def _want(value: Any, kind: Any, where: str, error: type[ChopError]) -> None:
    is_flag = isinstance(value, bool) and kind in (int, _NUMBER)
    if is_flag or not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(k.__name__ for k in kinds)
        raise error(f"{where}: expected {wanted}, got {shown(value)}.")
