"""Studies of a search as figures: best values so far, the Pareto front, what mattered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chop.actions.trials import DIRECTIONS, TrialRecord, best_so_far, candidates, pareto_front
from chop.errors import DataError
from chop.report.page_record import PageRecord


def study_record(study: Mapping[str, Any]) -> PageRecord:
    """The study with `best` (a curve for each objective) and `front` (numbers of trials) added.

    A study is plain data as `chop.actions.trials` describes it; `importance` (objective ->
    parameter -> share), where given, is kept.
    """
    objectives = _objectives(study)
    trials = [{"attributes": {}, **trial} for trial in study.get("trials", ())]
    done = [t for t in candidates(trials) if _is_finite(t, objectives)]
    return {
        "name": study.get("name", "study"),
        "objectives": objectives,
        "sampler": study.get("sampler"),
        "seed": study.get("seed"),
        "importance": _importance(study, objectives),
        "trials": trials,
        "best": {name: _improvements(done, name, way) for name, way in objectives.items()},
        "front": [trial["number"] for trial in pareto_front(done, objectives)],
        "applied": _applied(study, trials),
    }


def _applied(study: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of the trial whose model was kept."""
    applied = study.get("applied")
    if applied is None or any(trial["number"] == applied for trial in trials):
        return applied
    raise DataError(f"study '{study.get('name', '')}'.applied: it has no trial {applied!r}.")


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
    """By objective and parameter, most important first; one mapping of numbers is of the first."""
    given = study.get("importance") or {}
    if not given:
        return None
    by_objective = all(isinstance(value, Mapping) for value in given.values())
    named = given if by_objective else {next(iter(objectives)): given}
    return {
        objective: dict(sorted(shares.items(), key=lambda pair: -pair[1]))
        for objective, shares in named.items()
    }


def _improvements(
    trials: Sequence[TrialRecord], objective: str, direction: str
) -> list[tuple[int, float]]:
    """Number and value of each trial that was better than all before it."""
    numbers = sorted(trial["number"] for trial in trials)
    curve: list[tuple[int, float]] = []
    for number, value in zip(numbers, best_so_far(trials, objective, direction), strict=True):
        if not curve or value != curve[-1][1]:
            curve.append((number, value))
    return curve
