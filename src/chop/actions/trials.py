"""Studies as plain data: what their trials say, for those who run them and those who draw them.

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
"""Direction -> the sign that makes more of it better."""
CONSTRAINTS, COPIED_FROM = "constraints", "copied_from"
"""Attributes of a trial: its constraints by name, and the number of the trial it repeats."""


def is_feasible(trial: TrialRecord) -> bool:
    """Whether every constraint the trial stated holds: 0 or less."""
    stated = trial["attributes"].get(CONSTRAINTS, {})
    return all(value <= 0 for value in stated.values())


def candidates(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The trials with a result: complete, feasible and not a copy of another."""
    return [
        trial for trial in evaluated(trials) if trial["state"] == "complete" and is_feasible(trial)
    ]


def evaluated(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The trials that were evaluated: not those that repeat another's point."""
    return [trial for trial in trials if COPIED_FROM not in trial["attributes"]]


def failures(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that failed; one that only repeats another does not count."""
    return [trial for trial in evaluated(trials) if trial["state"] == "failed"]


def scores(trial: TrialRecord, objectives: Mapping[str, str]) -> tuple[float, ...]:
    """The trial's values, turned so that more is better in each."""
    return tuple(DIRECTIONS[way] * trial["values"][name] for name, way in objectives.items())


def best_trial(trials: Iterable[TrialRecord], objectives: Mapping[str, str]) -> TrialRecord | None:
    """The trial with the best first objective, the earliest of equals; None where none has one."""
    found = candidates(trials)
    return max(found, key=lambda t: (scores(t, objectives)[0], -t["number"]), default=None)


def pareto_front(trials: Iterable[TrialRecord], objectives: Mapping[str, str]) -> list[TrialRecord]:
    """The trials that no other one beats in every objective, best first objective first."""
    front: list[TrialRecord] = []
    reached: list[tuple[float, ...]] = []
    ordered = sorted(candidates(trials), key=lambda t: (scores(t, objectives), -t["number"]))
    for trial in reversed(ordered):  # whoever beats a trial comes before it
        score = scores(trial, objectives)
        if not any(all(r >= s for r, s in zip(other, score, strict=True)) for other in reached):
            front.append(trial)
            reached.append(score)
    return front


def best_so_far(trials: Sequence[TrialRecord], objective: str, direction: str) -> list[float]:
    """After each evaluation that has a result, the best value until then."""
    ordered = sorted(candidates(trials), key=lambda t: t["number"])
    values = [trial["values"][objective] for trial in ordered]
    return list(itertools.accumulate(values, max if direction == "maximize" else min))
