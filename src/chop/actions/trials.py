"""Studies as plain data, for searches and for reports.

A trial is `{"number", "state", "values": {objective: float}, "params", "attributes", "seconds",
"reason"}`; a study is `{"name", "objectives": {name: "maximize" | "minimize"}, "sampler", "seed",
"trials": [trial, …]}`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TrialRecord = Mapping[str, Any]
DIRECTIONS = {"maximize": 1.0, "minimize": -1.0}
"""Direction -> sign that makes larger values better."""
CONSTRAINTS, COPIED_FROM = "constraints", "copied_from"
"""Attributes of a trial: its constraints by name, and the number of the trial it copies."""


def is_feasible(trial: TrialRecord) -> bool:
    """Return True if every constraint of the trial holds: 0 or less."""
    return all(value <= 0 for value in trial["attributes"].get(CONSTRAINTS, {}).values())


def candidates(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials with a result: complete, feasible and not a copy."""
    return [
        trial for trial in evaluated(trials) if trial["state"] == "complete" and is_feasible(trial)
    ]


def evaluated(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that were evaluated, without copies of others."""
    return [trial for trial in trials if COPIED_FROM not in trial["attributes"]]


def failures(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that failed, without copies of others."""
    return [trial for trial in evaluated(trials) if trial["state"] == "failed"]


def scores(trial: TrialRecord, objectives: Mapping[str, str]) -> tuple[float, ...]:
    """Return the values of a trial with signs that make larger values better."""
    return tuple(DIRECTIONS[way] * trial["values"][name] for name, way in objectives.items())


def best_trial(trials: Iterable[TrialRecord], objectives: Mapping[str, str]) -> TrialRecord | None:
    """Return the first trial with the best first objective, or None."""
    return max(
        candidates(trials), key=lambda t: (scores(t, objectives)[0], -t["number"]), default=None
    )


def pareto_front(trials: Iterable[TrialRecord], objectives: Mapping[str, str]) -> list[TrialRecord]:
    """Return the trials that no other one beats in every objective, sorted by the first one."""
    front: list[TrialRecord] = []
    reached: list[tuple[float, ...]] = []
    ordered = sorted(candidates(trials), key=lambda t: (scores(t, objectives), -t["number"]))
    for trial in reversed(ordered):  # a trial that beats another comes before it
        score = scores(trial, objectives)
        if not any(all(r >= s for r, s in zip(other, score, strict=True)) for other in reached):
            front.append(trial)
            reached.append(score)
    return front


def best_so_far(trials: Sequence[TrialRecord], objective: str, direction: str) -> list[float]:
    """Return the best value so far after each evaluation with a result."""
    ordered = sorted(candidates(trials), key=lambda t: t["number"])
    values = [trial["values"][objective] for trial in ordered]
    return list(itertools.accumulate(values, max if direction == "maximize" else min))
