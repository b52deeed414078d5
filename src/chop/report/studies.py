"""Studies of a search as figures: best values so far, the Pareto front, what mattered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chop.errors import DataError

DIRECTIONS = {"maximize": -1.0, "minimize": 1.0}
"""What to multiply a value by so that less is better."""
Record = dict[str, Any]
Trial = Mapping[str, Any]


def study_record(study: Mapping[str, Any]) -> Record:
    """The study with `best` (a curve for each objective) and `front` (numbers of trials) added.

    A study is plain data: `name`, `objectives` (name -> "maximize" or "minimize"), `sampler`,
    `seed` and `trials`; `importance` (objective -> parameter -> share), where given, is kept.
    """
    signs = _signs(study)
    trials = list(study.get("trials", ()))
    done = [t for t in trials if _is_complete(t, signs)]
    return {
        "name": study.get("name", "study"),
        "objectives": dict(study["objectives"]),
        "sampler": study.get("sampler"),
        "seed": study.get("seed"),
        "importance": _importance(study, signs),
        "trials": trials,
        "best": {name: best_so_far(done, name, sign) for name, sign in signs.items()},
        "front": [trial["number"] for trial in pareto_front(done, signs)],
    }


def _signs(study: Mapping[str, Any]) -> dict[str, float]:
    where = f"study '{study.get('name', '')}'"
    if not study.get("objectives"):
        raise DataError(f"{where}: no objectives. Give a mapping from name to direction.")
    for name, direction in study["objectives"].items():
        if direction not in DIRECTIONS:
            allowed = ", ".join(DIRECTIONS)
            raise DataError(
                f"{where}.objectives.{name}: unknown direction '{direction}'. Allowed: {allowed}."
            )
    return {name: DIRECTIONS[direction] for name, direction in study["objectives"].items()}


def _is_complete(trial: Trial, objectives: Mapping[str, float]) -> bool:
    values = trial.get("values") or {}
    return trial.get("state") == "complete" and all(
        values.get(name) is not None and math.isfinite(values[name]) for name in objectives
    )


def _importance(study: Mapping[str, Any], objectives: Mapping[str, float]) -> Record | None:
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


def best_so_far(trials: Sequence[Trial], objective: str, sign: float) -> list[tuple[int, float]]:
    """Trial number and best value after it, where it improved; by number."""
    curve: list[tuple[int, float]] = []
    for trial in sorted(trials, key=lambda t: t["number"]):
        value = trial["values"][objective]
        if not curve or sign * value < sign * curve[-1][1]:
            curve.append((trial["number"], value))
    return curve


def pareto_front(trials: Sequence[Trial], signs: Mapping[str, float]) -> list[Trial]:
    """Trials that no other beats in one objective without losing in another; the best first."""

    def losses(trial: Trial) -> tuple[float, ...]:
        return tuple(sign * trial["values"][name] for name, sign in signs.items())

    front: dict[tuple[float, ...], Trial] = {}
    for trial in sorted(trials, key=lambda t: (losses(t), t["number"])):
        mine = losses(trial)  # whatever could beat it comes before it
        if not any(all(a <= b for a, b in zip(kept, mine, strict=True)) for kept in front):
            front[mine] = trial
    return list(front.values())
