"""Search from start to end, and its result.

>>> from chop.search import Choice, Space
>>> space = Space({"x": Choice((1, 2, 3))})
>>> result = search(space, lambda point, trial: {"y": point["x"]}, {"y": "maximize"},
...                 sampler="grid", trials=3, storage=getfixture("tmp_path") / "study.db")
>>> result.best["params"]
{'x': 3}
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from chop.actions.records import write_csv
from chop.actions.trials import CONSTRAINTS, TrialRecord, best_trial, pareto_front
from chop.arguments import PATH, TEXT, takes
from chop.errors import SearchError
from chop.files import write_whole
from chop.log import get_logger
from chop.registry import suggest
from chop.report.study_page import study_html
from chop.search.progress import Progress
from chop.search.search_plan import SearchPlan, make_plan
from chop.search.space import Space
from chop.search.study_storage import check_is_file, open_store, quiet
from chop.search.trial import Evaluate
from chop.search.trial_queue import OWN_ATTRIBUTES, REASON, SECONDS, TrialQueue
from chop.search.worker_loop import INTERRUPTED, work
from chop.search.workers import ENGINES

STATES = {"COMPLETE": "complete", "FAIL": "failed", "PRUNED": "pruned"}
_log = get_logger(__name__)

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class SearchResult:
    """Trials of a search as plain records, with the Optuna study."""

    name: str
    objectives: Mapping[str, str]
    sampler: str
    seed: int
    trials: Sequence[TrialRecord]
    stopped: str | None = None
    """Reason why the search ended early; None if it has all its trials."""
    study: optuna.Study | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> TrialRecord:
        """Best trial of a search with one objective; see also `pareto_front`."""
        if len(self.objectives) > 1:
            raise SearchError(
                f"study '{self.name}': with objectives {', '.join(self.objectives)} no trial is "
                "best. Take one from pareto_front()."
            )
        best = best_trial(self.trials, self.objectives)
        if best is None:
            reasons = [t["reason"] for t in self.trials if t["reason"]]
            failed = f" The last one failed: {reasons[-1]}" if reasons else ""
            raise SearchError(f"study '{self.name}': no trial has a result.{failed}")
        return best

    def pareto_front(self) -> list[TrialRecord]:
        """Return the feasible trials that no other trial dominates."""
        return pareto_front(self.trials, self.objectives)

    @property
    def record(self) -> dict[str, Any]:
        """Study as plain data."""
        return {
            "name": self.name,
            "objectives": dict(self.objectives),
            "sampler": self.sampler,
            "seed": self.seed,
            "trials": [dict(trial) for trial in self.trials],
        }

    def _repr_html_(self) -> str:
        """Return the trials and their front as HTML for notebooks."""
        return study_html(self.record)

    def save(self, directory: str | Path) -> list[Path]:
        """Write `study.json` and `trials.csv` into `directory`."""
        return save_study(self.record, directory)


def save_study(record: Mapping[str, Any], directory: str | Path) -> list[Path]:
    """Write a study, as plain data, to `study.json` and `trials.csv` in `directory`."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    table = write_csv(folder / "trials.csv", [_row(trial) for trial in record["trials"]])
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    return [write_whole(folder / "study.json", text), table]


def search(
    plan: SearchPlan | Space | None = None,
    evaluate: Evaluate | str | None = None,
    objectives: Mapping[str, str] | None = None,
    *,
    on_reused: Callable[[int], None] | None = None,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> SearchResult:
    """Run the search of `plan`, or of the parts of a `SearchPlan`.

    The same search, started again after a kill or from another machine, resumes. A trial that
    fails is recorded with its reason. A different search under the same name is rejected.
    `on_reused` is called with the number of trials of earlier runs.
    """
    whole = make_plan(plan, evaluate, objectives, **settings)
    worker_plan, launch = whole.start(), ENGINES[whole.engine]
    queue = TrialQueue.open(worker_plan)
    report = _reporter(queue, on_progress)
    try:
        reused = queue.count().finished
        if reused and on_reused is not None:
            on_reused(reused)
        queue.enqueue(list(whole.initial))
        try:
            if whole.workers == 1 and launch is ENGINES["processes"]:
                stopped = work(worker_plan, on_trial=report)
            else:
                stopped = launch(worker_plan, whole.workers, report)
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        queue.study.know_trials(None)
        return _result(queue.study, stopped)
    finally:
        queue.close()


def check_storage(plan: SearchPlan, scratch: Path) -> None:
    """Raise if the storage of `plan` cannot be opened or contains another search.

    A file is first copied to the folder `scratch`, so that it does not change.
    """
    storage = "" if plan.storage is None else str(plan.storage)
    if "://" in storage:
        open_store(storage)
        return
    file, copy = Path(storage), scratch / (Path(storage).name or "study.db")
    check_is_file(file if storage else copy)
    if file.is_file():
        shutil.copyfile(file, copy)
    try:
        TrialQueue.open(dataclasses.replace(plan, storage=copy).start()).close()
    except SearchError as error:
        raise SearchError(str(error).replace(str(copy), storage)) from error


@takes(SearchError, name=TEXT, storage=PATH)
def load_study(name: str, storage: str | Path) -> SearchResult:
    """Load the result of a search so far from its storage."""
    store = open_store(storage)
    with quiet():
        try:
            study = optuna.load_study(study_name=name, storage=store.storage)
        except KeyError as error:
            hint = suggest(name, optuna.get_all_study_names(store.storage))
            raise SearchError(
                f"storage '{store.shown}': it has no study '{name}'. {hint}"
            ) from error
    return _result(study)


def _reporter(queue: TrialQueue, on_progress: OnProgress | None) -> Callable[[], None]:
    if on_progress is None:
        return lambda: None
    plan = queue.plan
    finished: dict[int, dict[str, Any]] = {}

    def report() -> None:
        records = []
        for trial in queue.trials():
            record = finished.get(trial.number) or trial_record(trial, plan.objectives)
            if trial.state.is_finished():
                finished[trial.number] = record
            records.append(record)
        on_progress(Progress(plan.name, plan.trials, plan.objectives, records))

    return report


def trial_record(trial: FrozenTrial, objectives: Mapping[str, str]) -> dict[str, Any]:
    """Return a trial as plain data."""
    attributes = {k: v for k, v in trial.user_attrs.items() if k not in OWN_ATTRIBUTES}
    if trial.constraints:
        attributes[CONSTRAINTS] = dict(trial.constraints)
    values = trial.values if trial.state.is_finished() and trial.values else []
    return {
        "number": trial.number,
        "state": STATES.get(trial.state.name, "running"),
        "values": dict(zip(objectives, values, strict=False)),
        "params": dict(trial.params),
        "attributes": attributes,
        "seconds": trial.user_attrs.get(SECONDS),
        "reason": trial.user_attrs.get(REASON),
    }


def _result(study: optuna.Study, stopped: str | None = None) -> SearchResult:
    attributes = study.user_attrs
    names = study.metric_names or [f"objective_{i}" for i in range(len(study.directions))]
    ways = [direction.name.lower() for direction in study.directions]
    objectives = attributes.get("objectives", dict(zip(names, ways, strict=True)))
    trials = study.get_trials(deepcopy=False)
    records = [trial_record(t, objectives) for t in trials if t.state != TrialState.WAITING]
    if stopped is not None:
        _log.warning("study '%s' stopped early: %s.", study.study_name, stopped)
    return SearchResult(
        name=study.study_name,
        objectives=objectives,
        sampler=attributes.get("sampler", type(study.sampler).__name__),
        seed=attributes.get("seed", 0),
        trials=records,
        stopped=stopped,
        study=study,
    )


def _row(trial: TrialRecord) -> dict[str, Any]:
    row = {key: trial[key] for key in ("number", "state", "seconds", "reason")}
    for group in ("values", "params", "attributes"):
        for key, value in trial[group].items():
            is_nested = isinstance(value, dict | list)
            row[f"{group}.{key}"] = json.dumps(value) if is_nested else value
    return row
