"""Search studies as part of a report's page and as a notebook cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chop import notebook
from chop.actions.trials import DIRECTIONS, TrialRecord, best_so_far, candidates, pareto_front
from chop.errors import DataError
from chop.report.page_parts import PageRecord


def study_record(study: Mapping[str, Any]) -> PageRecord:
    """Return the study with `best` (a curve per objective) and `front` (trial numbers) added.

    A study is plain data as `chop.actions.trials` describes it; it may have an `importance`
    (objective -> parameter -> share).
    """
    objectives = _objectives(study)
    trials = [{"attributes": {}, **trial} for trial in study.get("trials", ())]
    complete = [t for t in candidates(trials) if _is_finite(t, objectives)]
    applied = study.get("applied")
    if applied is not None and all(trial["number"] != applied for trial in trials):
        raise DataError(f"study '{study.get('name', '')}'.applied: it has no trial {applied!r}.")
    return {
        "name": study.get("name", "study"),
        "objectives": objectives,
        "sampler": study.get("sampler"),
        "seed": study.get("seed"),
        "importance": _importance(study, objectives),
        "trials": trials,
        "best": {name: _improvements(complete, name, way) for name, way in objectives.items()},
        "front": [trial["number"] for trial in pareto_front(complete, objectives)],
        "applied": applied,
    }


def _objectives(study: Mapping[str, Any]) -> dict[str, str]:
    where = f"study '{study.get('name', '')}'"
    if not study.get("objectives"):
        raise DataError(f"{where}: no objectives. Give a mapping from name to direction.")
    for name, direction in study["objectives"].items():
        if direction not in DIRECTIONS:
            allowed = ", ".join(DIRECTIONS)
            raise DataError(
                f"{where}.objectives.{name}: unknown direction '{direction}'. Allowed: {allowed}."
            )
    return dict(study["objectives"])


def _is_finite(trial: TrialRecord, objectives: Mapping[str, str]) -> bool:
    values = trial.get("values") or {}
    return all(values.get(n) is not None and math.isfinite(values[n]) for n in objectives)


def _importance(study: Mapping[str, Any], objectives: Mapping[str, str]) -> PageRecord | None:
    """Return shares by objective and parameter, most important first.

    A mapping from parameter to number belongs to the first objective.
    """
    importance = study.get("importance") or {}
    if not importance:
        return None
    if not all(isinstance(value, Mapping) for value in importance.values()):
        importance = {next(iter(objectives)): importance}
    return {
        objective: dict(sorted(shares.items(), key=lambda pair: -pair[1]))
        for objective, shares in importance.items()
    }


def _improvements(
    trials: Sequence[TrialRecord], objective: str, direction: str
) -> list[tuple[int, float]]:
    """Return number and value of each trial that was better than all before it."""
    numbers = sorted(trial["number"] for trial in trials)
    curve: list[tuple[int, float]] = []
    for number, value in zip(numbers, best_so_far(trials, objective, direction), strict=True):
        if not curve or value != curve[-1][1]:
            curve.append((number, value))
    return curve


def study_html(study: Mapping[str, Any]) -> str:
    """Return the trials of a study, best first, and a plot of the front or the best so far."""
    record = study_record(study)
    trials, front = record["trials"], set(record["front"])
    states = Counter(str(t.get("state", "")) for t in trials)
    title = notebook.heading(
        record["name"],
        f"{len(trials)} trials",
        ", ".join(f"{n} {state}" for state, n in states.items() if state),
        ", ".join(f"{way} {name}" for name, way in record["objectives"].items()),
    )
    ordered = sorted(trials, key=lambda t: (t["number"] not in front, t["number"]))
    rows = [
        {
            "trial": t["number"],
            "front": "●" if t["number"] in front else "",
            "state": t.get("state", ""),
            **(t.get("values") or {}),
            **(t.get("params") or {}),
        }
        for t in ordered
    ]
    return notebook.shown(title, _scatter(record, trials, front), notebook.table(rows))


def _scatter(record: Mapping[str, Any], trials: Any, front: set[int]) -> str:
    """Return a plot of the first two objectives, or of the only one over the trials."""
    names = list(record["objectives"])
    is_single = len(names) == 1
    marked = {number for number, _ in record["best"][names[0]]} if is_single else front
    points = []
    for trial in trials:
        values, number = trial.get("values") or {}, trial["number"]
        if all(values.get(n) is not None for n in names):
            place = (number, values[names[0]]) if is_single else (values[n] for n in names[:2])
            x, y = map(float, place)
            points.append((x, y, f"trial {number}: {trial.get('values')}", number in marked))
    if is_single:
        return notebook.scatter(points, "trial", names[0])
    return notebook.scatter(points, names[0], names[1], joined=len(names) == 2)
