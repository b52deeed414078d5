"""The chosen points on the test split: trained on all training reviews, once for each seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments import PRIORITY, StudyPlan
from subjects import RECOVERY, Task

from chop.actions.records import find_record, read_records
from chop.actions.trials import candidates
from chop.search.costs import compute_costs
from chop.search.trial import TrialContext

Record = dict[str, Any]
COSTS = ("average_bits", "average_linear_bits", "parameters")
MOST_BITS = (2.5, 3.5, 4.5, 5.0, 8.0)
"""On the front of accuracy and bits, the best with at most so many bits is chosen."""
TOGETHER = (3, 5, 6)
"""Experiments whose studies differ in the sampler alone: one choice from all of them."""


@dataclass(frozen=True)
class Job:
    """A point to measure on the test split."""

    study: str
    choice: str
    params: Mapping[str, Any]
    seed: int

    @property
    def key(self) -> Record:
        """What tells it from other jobs."""
        text = json.dumps(self.params, sort_keys=True)
        return {"study": self.study, "choice": self.choice, "point": text, "seed": self.seed}


def choose(
    plans: Sequence[StudyPlan], studies: Mapping[str, Any], seeds: Sequence[int]
) -> list[Job]:
    """What to measure: the float model, then the best of each study, most important first."""
    found = [("float", "fine-tuned", {})]
    for experiment in PRIORITY:
        own = [p for p in plans if p.experiment == experiment and p.name in studies]
        groups = [own] if experiment in TOGETHER else [[plan] for plan in own]
        for group in groups:
            found += _choices([studies[plan.name] for plan in group])
    return [
        Job(study, choice, params, seed)
        for study, choice, params in found
        for seed in (seeds[:1] if study.startswith("4-") else seeds)
    ]


def _choices(studies: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    trials = [(study["name"], t) for study in studies for t in candidates(study["trials"])]
    if not trials:
        return []
    if "average_bits" not in studies[0]["objectives"]:
        best = max(trials, key=lambda pair: pair[1]["values"]["accuracy"])
        return [(best[0], "best", best[1]["params"])]
    chosen = []
    for bits in MOST_BITS:
        light = [pair for pair in trials if pair[1]["values"]["average_bits"] <= bits]
        if light:
            name, trial = max(light, key=lambda pair: pair[1]["values"]["accuracy"])
            if all(trial["params"] != params for _, _, params in chosen):
                chosen.append((name, f"at most {bits:g} bits", trial["params"]))
    return chosen


def measure(task: Task, job: Job, plan: StudyPlan | None) -> Record:
    """The accuracy on the test split, and what the model costs."""
    if plan is None:
        graph = task.fine_tuned("whole", job.seed)
        return {"test": task.subject("whole").evaluate(graph), **compute_costs(graph, COSTS)}
    evaluator = plan.evaluator(task)
    context = TrialContext(seed=job.seed)
    if plan.experiment in (1, 2):
        evaluator = replace(evaluator, subject=task.subject("whole"))
        graph = evaluator.build(job.params, context)
        before = None
    else:
        subject = task.subject("whole", start=lambda seed: task.kept("whole", seed))
        evaluator = replace(evaluator, subject=subject)
        graph = evaluator.build(job.params, context)
        before = subject.evaluate(graph)
        subject.train(graph, job.seed, learning_rate=RECOVERY)
    test = task.subject("whole").evaluate(graph)
    return {"test_before_training": before, "test": test, **compute_costs(graph, COSTS)}


def records_in(out: Path) -> list[Record]:
    """Every measurement on the test split, of all workers."""
    return [r for file in sorted(out.glob("finals-*.jsonl")) for r in read_records(file)]


def is_done(out: Path, job: Job) -> bool:
    """Whether the job was measured before."""
    return find_record(records_in(out), job.key) is not None
