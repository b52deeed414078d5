"""Studies as notebooks show them: trials, and the front or the best so far as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from chop import notebook
from chop.report.study_figures import study_record


def study_html(study: Mapping[str, Any]) -> str:
    """The trials of a study, best first, with the Pareto front or the best values so far."""
    record = study_record(study)
    objectives, trials = record["objectives"], record["trials"]
    front = set(record["front"])
    states = Counter(str(t.get("state", "")) for t in trials)
    title = notebook.heading(
        record["name"],
        f"{len(trials)} trials",
        ", ".join(f"{n} {state}" for state, n in states.items() if state),
        ", ".join(f"{way} {name}" for name, way in objectives.items()),
    )
    picture = _picture(record, trials, front)
    ordered = sorted(trials, key=lambda t: (t["number"] not in front, t["number"]))
    rows = [_row(t, t["number"] in front) for t in ordered]
    return notebook.shown(title, picture, notebook.table(rows))


def _row(trial: Mapping[str, Any], is_best: bool) -> dict[str, Any]:
    values, params = trial.get("values") or {}, trial.get("params") or {}
    return {
        "trial": trial["number"],
        "front": "●" if is_best else "",
        "state": trial.get("state", ""),
        **values,
        **params,
    }


def _picture(record: Mapping[str, Any], trials: Any, front: set[int]) -> str:
    names = list(record["objectives"])
    done = [t for t in trials if all((t.get("values") or {}).get(n) is not None for n in names)]
    if len(names) == 1:
        best = {number for number, _ in record["best"][names[0]]}
        points = [
            (float(t["number"]), float(t["values"][names[0]]), _words(t), t["number"] in best)
            for t in done
        ]
        return notebook.scatter(points, "trial", names[0])
    points = [
        (
            float(t["values"][names[0]]),
            float(t["values"][names[1]]),
            _words(t),
            t["number"] in front,
        )
        for t in done
    ]
    return notebook.scatter(points, names[0], names[1], joined=len(names) == 2)


def _words(trial: Mapping[str, Any]) -> str:
    return f"trial {trial['number']}: {trial.get('values')}"
