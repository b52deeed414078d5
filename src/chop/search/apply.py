"""From a trial of a study back to its model."""

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
"""A study or a trial as plain data."""


class Builds(Protocol):
    """What rebuilds a model: every evaluator of `chop.search.evaluate` does."""

    def build(self, params: Mapping[str, Any], context: TrialContext) -> MaseGraph:
        """The model of a point."""
        ...

    def describe(self, params: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
        """What a point means, as plain tables."""
        ...


def apply(
    study: StudyRecord | str | Path,
    trial: str | int = "best",
    evaluator: Builds | None = None,
    *,
    directory: str | Path | None = None,
) -> MaseGraph:
    """The model of a trial of `study`, a record or the file `study.json`.

    `trial`: "best" of a study with one objective, the name of an objective for the best by it, or
    a number. A trial that kept its model is read back; any other is rebuilt by `evaluator` from its
    stored parameters and seed, bit for bit on the same machine. With `directory`, the model is
    exported there with its configuration and the record of its trial.
    """
    record, folder = read_study(study)
    chosen = find_trial(record, trial)
    graph = _kept(chosen, folder)
    if graph is None:
        graph = _rebuilt(chosen, evaluator, record)
    if directory is not None:
        export_trial(graph, chosen, directory, evaluator)
    return graph


def read_study(study: StudyRecord | str | Path) -> tuple[StudyRecord, Path]:
    """The record of a study, and the folder that its paths may be relative to."""
    if isinstance(study, Mapping):
        return study, Path()
    file = Path(study)
    if file.is_dir():
        file = file / "study.json"
    if not file.is_file():
        raise DataError(f"apply: no study in '{file}'.")
    found = read_json(file, DataError, finite=True)
    return check_study(found, str(file), DataError), file.parent


def check_wanted(wanted: str | None, objectives: Mapping[str, str], name: str) -> None:
    """Raise unless `wanted` is a number, "best" or an objective, before any trial is run."""
    if wanted is not None and wanted != "best" and not wanted.isdecimal():
        _objective({"objectives": objectives, "name": name}, wanted)


def find_trial(study: StudyRecord, trial: str | int) -> StudyRecord:
    """The trial with that number, or the best one."""
    if isinstance(trial, int) or trial.isdecimal():
        numbered = {t["number"]: t for t in study["trials"]}
        if int(trial) not in numbered:
            raise DataError(f"apply: '{study['name']}' has {len(numbered)} trials, none {trial}.")
        return _complete(numbered[int(trial)])
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
    """The complete trial whose value of `objective` is best; of equals the first."""
    found = trials.best_trial(study["trials"], {objective: study["objectives"][objective]})
    if found is None:
        raise DataError(f"apply: no trial of '{study['name']}' has a result.")
    return found


def choose_trial(study: StudyRecord, wanted: str, tolerance: float) -> StudyRecord:
    """The trial `wanted`: with several objectives, "best" is the cheapest that loses little.

    Little is `tolerance` of the first objective; cheap is by the second.
    """
    names = list(study["objectives"])
    if wanted != "best" or len(names) == 1:
        return find_trial(study, wanted)
    first, second = names[0], names[1]
    up, cheap = (trials.DIRECTIONS[study["objectives"][name]] for name in (first, second))
    top = up * find_trial(study, first)["values"][first]
    near = [
        trial
        for trial in trials.pareto_front(study["trials"], study["objectives"])
        if up * trial["values"][first] >= top - tolerance
    ]
    return max(near, key=lambda trial: cheap * trial["values"][second])


def _complete(trial: StudyRecord) -> StudyRecord:
    if trial["state"] != "complete":
        raise DataError(
            f"apply: trial {trial['number']} is {trial['state']}: {trial.get('reason')}."
        )
    return trial


def _kept(trial: StudyRecord, folder: Path) -> MaseGraph | None:
    """The model that the trial exported, where it still is."""
    stored = trial["attributes"].get("checkpoint")
    if stored is not None and not isinstance(stored, str):
        raise DataError(f"apply: trial {trial['number']} kept no model at {stored!r:.80}.")
    for path in (Path(stored), folder / stored) if stored else ():
        if path.with_name(f"{path.name}.json").is_file():
            return MaseGraph.from_checkpoint(path)
    return None


def _rebuilt(trial: StudyRecord, evaluator: Builds | None, study: StudyRecord) -> MaseGraph:
    if evaluator is None:
        raise DataError(
            f"apply: trial {trial['number']} of '{study['name']}' kept no model. Give the "
            f"evaluator that the study ran with, or run it with keep=True."
        )
    context = TrialContext(trial["number"], int(trial["attributes"]["seed"]))
    return evaluator.build(trial["params"], context)


def export_trial(
    graph: MaseGraph, trial: StudyRecord, directory: str | Path, evaluator: Builds | None = None
) -> Path:
    """Write `model.json`, `model.safetensors`, `trial.json` and, where known, `config.toml`."""
    folder = Path(directory)
    graph.export(folder / "model")
    write_whole(folder / "trial.json", json.dumps(trial, indent=1) + "\n")
    if evaluator is not None:
        seed = int(trial["attributes"].get("seed", 0))
        told = evaluator.describe(trial["params"], seed)
        write_whole(folder / "config.toml", dump_toml(told))
    return folder
