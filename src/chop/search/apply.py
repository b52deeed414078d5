"""Model of a trial of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from chop.actions import trials
from chop.actions.study_files import check_study
from chop.config import dump_toml
from chop.errors import DataError
from chop.files import read_json, write_whole
from chop.ir.graph import MaseGraph
from chop.search.trial import TrialContext

StudyRecord = Mapping[str, Any]
"""Study or trial as plain data."""


class Builds(Protocol):
    """Evaluator that can rebuild a model, such as those of `chop.search.evaluate`."""

    def build(self, params: Mapping[str, Any], context: TrialContext) -> MaseGraph:
        """Return the model of a point."""
        ...

    def describe(self, params: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
        """Return the settings of a point as plain tables."""
        ...


def apply(
    study: StudyRecord | str | Path,
    trial: str | int = "best",
    evaluator: Builds | None = None,
    *,
    directory: str | Path | None = None,
) -> MaseGraph:
    """Return the model of a trial of `study`, a record or the file `study.json`.

    `trial`: "best" if the study has one objective, the name of an objective for its best trial, or
    a number. The model is loaded from the trial's checkpoint if there is one. Otherwise `evaluator`
    rebuilds it from the parameters and the seed, bit for bit on the same machine. With `directory`,
    the model is exported there with its configuration and the record of its trial.
    """
    record, folder = read_study(study)
    chosen = find_trial(record, trial)
    graph = _load_checkpoint(chosen, folder)
    if graph is None:
        if evaluator is None:
            raise DataError(
                f"apply: trial {chosen['number']} of '{record['name']}' kept no model. Give the "
                f"evaluator that the study ran with, or run it with keep=True."
            )
        context = TrialContext(chosen["number"], int(chosen["attributes"]["seed"]))
        graph = evaluator.build(chosen["params"], context)
    if directory is not None:
        export_trial(graph, chosen, directory, evaluator)
    return graph


def read_study(study: StudyRecord | str | Path) -> tuple[StudyRecord, Path]:
    """Return the record of a study, and the folder that its paths may be relative to."""
    if isinstance(study, Mapping):
        return study, Path()
    file = Path(study)
    if file.is_dir():
        file = file / "study.json"
    if not file.is_file():
        raise DataError(f"apply: no study in '{file}'.")
    record = read_json(file, DataError, finite=True)
    return check_study(record, str(file), DataError), file.parent


def check_trial_name(trial: str | None, objectives: Mapping[str, str], name: str) -> None:
    """Raise unless `trial` is None, a number, "best" or an objective of the study `name`."""
    if trial is not None and trial != "best" and not trial.isdecimal():
        _objective({"objectives": objectives, "name": name}, trial)


def find_trial(study: StudyRecord, trial: str | int) -> StudyRecord:
    """Return the complete trial with that number, or the best one."""
    if isinstance(trial, int) or trial.isdecimal():
        numbered = {t["number"]: t for t in study["trials"]}
        if int(trial) not in numbered:
            raise DataError(f"apply: '{study['name']}' has {len(numbered)} trials, none {trial}.")
        chosen: StudyRecord = numbered[int(trial)]
        if chosen["state"] != "complete":
            reason = chosen.get("reason")
            raise DataError(f"apply: trial {chosen['number']} is {chosen['state']}: {reason}.")
        return chosen
    return best_trial(study, _objective(study, trial))


def _objective(study: StudyRecord, trial: str) -> str:
    objectives = list(study["objectives"])
    if trial in objectives:
        return trial
    if trial != "best" or len(objectives) != 1:
        raise DataError(
            f"apply: '{trial}' names no trial of '{study['name']}'. Allowed: a number, "
            f"{'best, ' if len(objectives) == 1 else ''}{', '.join(objectives)}."
        )
    return str(objectives[0])


def best_trial(study: StudyRecord, objective: str) -> StudyRecord:
    """Return the complete trial with the best `objective`, the first of equals."""
    best = trials.best_trial(study["trials"], {objective: study["objectives"][objective]})
    if best is None:
        raise DataError(f"apply: no trial of '{study['name']}' has a result.")
    return best


def choose_trial(study: StudyRecord, trial: str, tolerance: float) -> StudyRecord:
    """Return the trial `trial`: a number, "best" or an objective.

    With several objectives, "best" is the trial with the best second objective among those of the
    Pareto front within `tolerance` of the best first objective.
    """
    names = list(study["objectives"])
    if trial != "best" or len(names) == 1:
        return find_trial(study, trial)
    first, second = names[0], names[1]
    up, cheap = (trials.DIRECTIONS[study["objectives"][name]] for name in (first, second))
    top = up * find_trial(study, first)["values"][first]
    near = [
        trial
        for trial in trials.pareto_front(study["trials"], study["objectives"])
        if up * trial["values"][first] >= top - tolerance
    ]
    return max(near, key=lambda trial: cheap * trial["values"][second])


def _load_checkpoint(trial: StudyRecord, folder: Path) -> MaseGraph | None:
    stored = trial["attributes"].get("checkpoint")
    if stored is not None and not isinstance(stored, str):
        raise DataError(f"apply: trial {trial['number']} kept no model at {stored!r:.80}.")
    for path in (Path(stored), folder / stored) if stored else ():
        if path.with_name(f"{path.name}.json").is_file():
            return MaseGraph.from_checkpoint(path)
    return None


def export_trial(
    graph: MaseGraph, trial: StudyRecord, directory: str | Path, evaluator: Builds | None = None
) -> Path:
    """Write the model, `trial.json` and, if there is an evaluator, `config.toml`."""
    folder = Path(directory)
    graph.export(folder / "model")
    write_whole(folder / "trial.json", json.dumps(trial, indent=1) + "\n")
    if evaluator is not None:
        seed = int(trial["attributes"].get("seed", 0))
        write_whole(folder / "config.toml", dump_toml(evaluator.describe(trial["params"], seed)))
    return folder
