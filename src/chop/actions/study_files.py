"""Checks of study files, which other programs may have written.

Neither torch nor Optuna is imported here: `mase studies` needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.actions.trials import CONSTRAINTS, DIRECTIONS
from chop.errors import ChopError, DataError
from chop.files import shown

NUMBER = (int, float)
BITS = 64
"""Largest size of an integer, in bits."""


def check_study(study: Any, where: str, error: type[ChopError] = DataError) -> dict[str, Any]:
    """Return `study` if it has the form that `chop.actions.trials` describes, or raise."""
    want(study, dict, where, error)
    objectives = field(study, "objectives", dict, where, error)
    if not objectives:
        raise error(f"{where}.objectives: there are none.")
    for name, way in objectives.items():
        if way not in tuple(DIRECTIONS):
            allowed = ", ".join(DIRECTIONS)
            raise error(f"{where}.objectives.{name}: {shown(way)}. Allowed: {allowed}.")
    if "name" in study:
        want(study["name"], str, f"{where}.name", error)
    numbers: set[int] = set()
    for index, trial in enumerate(field(study, "trials", list, where, error)):
        place = f"{where}.trials[{index}]"
        _check_trial(trial, objectives, place, error)
        if trial["number"] in numbers:
            raise error(f"{place}.number: {trial['number']} is there twice.")
        numbers.add(trial["number"])
    _check_importance(study.get("importance"), f"{where}.importance", error)
    checked: dict[str, Any] = study
    return checked


def _check_trial(
    trial: Any, objectives: Mapping[str, str], where: str, error: type[ChopError]
) -> None:
    want(trial, dict, where, error)
    number = field(trial, "number", int, where, error)
    if isinstance(number, bool) or number < 0:
        raise error(f"{where}.number: expected a number from 0 on, got {shown(number)}.")
    state = field(trial, "state", str, where, error)
    values = field(trial, "values", dict, where, error) if trial.get("values") else {}
    for name, value in values.items():
        if value is not None:
            want(value, NUMBER, f"{where}.values.{name}", error)
    missing = [name for name in objectives if values.get(name) is None]
    if state == "complete" and missing:
        raise error(f"{where}.values: a complete trial has a value of '{missing[0]}'.")
    for key in ("params", "attributes"):
        field(trial, key, dict, where, error)
    stated = trial["attributes"].get(CONSTRAINTS, {})
    want(stated, dict, f"{where}.attributes.{CONSTRAINTS}", error)
    for name, value in stated.items():
        want(value, NUMBER, f"{where}.attributes.{CONSTRAINTS}.{name}", error)


def _check_importance(importance: Any, where: str, error: type[ChopError]) -> None:
    if importance is None:
        return
    want(importance, dict, where, error)
    flat = [v for v in importance.values() if not isinstance(v, dict)]
    nested = [x for v in importance.values() if isinstance(v, dict) for x in v.values()]
    if flat and nested:
        raise error(f"{where}: numbers by parameter, or by objective and parameter; not both.")
    for value in (*flat, *nested):
        want(value, NUMBER, where, error)


def field(record: Mapping[str, Any], key: str, kind: Any, where: str, error: Any) -> Any:
    """Return the value under `key`; raise `error` if it is missing or not of `kind`."""
    if key not in record:
        raise error(f"{where}: key '{key}' is missing.")
    want(record[key], kind, f"{where}.{key}", error)
    return record[key]


def want(value: Any, kind: Any, where: str, error: type[ChopError]) -> None:
    """Raise `error` if `value` is not of `kind`; booleans and huge integers are no numbers."""
    is_flag = isinstance(value, bool) and kind in (int, NUMBER)
    is_huge = isinstance(value, int) and value.bit_length() > BITS
    if is_flag or is_huge or not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(k.__name__ for k in kinds)
        raise error(f"{where}: expected {expected}, got {shown(value)}.")
