"""Tables and figures from what run.py wrote.

    python bench/search/report.py mase_output/search --to bench/search

Writes <to>/results.md, <to>/trials.csv with every trial, <to>/finals.csv with every measurement on
the test split, and under <to>/figures each figure as PNG and SVG with its data as CSV.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop.actions.records import MeasurementRecord, read_records, write_csv
from chop.actions.trials import best_trial, candidates, failures
from chop.errors import DataError
from chop.report.search_figures import (
    draw_best_so_far,
    draw_format_counts,
    draw_importance,
    draw_pareto,
    draw_precision_map,
)

COMMAND = "python bench/search/run.py --data DATA/imdb --model MODELS/bert-tiny"
PUBLISHED = {1: 0.87232, 2: 0.87644, 5: 0.86052}
"""Best accuracies of course reports: architectures, compression-aware, mixed precision."""
BEGINNINGS = {
    1: "Each study begins with the pretrained architecture and its usual learning rate.",
    2: "Each study begins with the pretrained architecture; compressed: MXINT8, 30 % zeros.",
    4: "Each study begins with every setting of its format, the same in all layers.",
    5: "Each study begins with block_fp and mxint at eight bits in all layers.",
    6: "Each study begins with every option, the same in all layers.",
}
"""Experiment -> the points that no sampler chose."""
NAMES = {
    1: "Architectures by three samplers",
    2: "Compression-aware search",
    3: "A fixed-point width for each layer",
    4: "Every number format",
    5: "Formats mixed",
    6: "Accuracy against average bits",
}
MOST_BITS, MOST_LOSS = 5.0, 0.005


@dataclass(frozen=True)
class Found:
    """What was recorded, and questions to it."""

    studies: dict[str, Any]
    finals: list[MeasurementRecord]

    def of(self, experiment: int) -> list[Any]:
        """The studies of an experiment."""
        start = f"{experiment}-"
        return [study for name, study in self.studies.items() if name.startswith(start)]

    def choices(self, start: str) -> dict[tuple[str, str], list[MeasurementRecord]]:
        """Test records of studies whose name starts so, by study and choice."""
        groups: dict[tuple[str, str], list[MeasurementRecord]] = {}
        for record in self.finals:
            if record["study"].startswith(start):
                groups.setdefault((record["study"], record["choice"]), []).append(record)
        return {key: sorted(each, key=lambda r: r["seed"]) for key, each in groups.items()}

    @property
    def floats(self) -> dict[int, float]:
        """Seed -> test accuracy of the float model."""
        return {r["seed"]: r["test"] for r in self.finals if r["study"] == "float"}


def main() -> None:
    """Read, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what run.py wrote")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    found = load(options.folder)
    options.to.mkdir(parents=True, exist_ok=True)
    (options.to / "results.md").write_text(write(found))
    write_csv(options.to / "trials.csv", trial_rows(found))
    write_csv(options.to / "finals.csv", found.finals)
    for path in draw(found, options.to / "figures"):
        print(path)
    print(options.to / "results.md")


def load(folder: Path) -> Found:
    """Studies and measurements of a folder."""
    files = sorted((folder / "studies").glob("*/study.json"))
    if not files:
        raise SystemExit(f"{folder}: no studies. Run bench/search/run.py first.")
    studies = {file.parent.name: json.loads(file.read_text()) for file in files}
    finals = [r for file in sorted(folder.glob("finals-*.jsonl")) for r in read_records(file)]
    return Found(studies, finals)


def trial_rows(found: Found) -> list[MeasurementRecord]:
    """Every trial on a line."""
    return [
        {
            "study": name,
            "number": trial["number"],
            "state": trial["state"],
            **trial["values"],
            "seconds": trial["seconds"],
            "reason": trial["reason"],
            "params": json.dumps(trial["params"]),
        }
        for name, study in found.studies.items()
        for trial in study["trials"]
    ]


def show(values: Sequence[float]) -> str:
    """The mean, with the lowest and highest where there are several."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.4f}"
    if len(values) == 1:
        return f"{mean} (1 seed)"
    return f"{mean} ({min(values):.4f} … {max(values):.4f})"


def show_point(params: dict[str, Any]) -> str:
    """The values of a point, those that many dimensions share said once."""
    short = {name.removeprefix("bert.encoder."): value for name, value in params.items()}
    if len(set(short.values())) == 1 and len(short) > 4:
        return f"all: {next(iter(short.values()))}"
    return ", ".join(f"{name} {value}" for name, value in short.items())


# -- what must be shown -------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """The mean of `values` must be above `bound`."""

    text: str
    bound: float
    values: Callable[[Found], list[float]]

    def row(self, found: Found) -> list[str]:
        """The claim, what was measured and whether it holds."""
        values = self.values(found)
        if not values:
            return [self.text, f"> {self.bound:+.4f}", "not measured", "–"]
        holds = "yes" if statistics.fmean(values) > self.bound else "no"
        return [self.text, f"> {self.bound:+.4f}", show(values), holds]


def best_final(found: Found, start: str) -> list[float]:
    """Test accuracies, over seeds, of the choice that validation put first."""
    groups = found.choices(start)
    order = {name: _validated(found, name) for name, _ in groups}
    if not groups:
        return []
    key = max(groups, key=lambda pair: order[pair[0]])
    return [r["test"] for r in groups[key]]


def _validated(found: Found, name: str) -> float:
    study = found.studies[name]
    best = best_trial(study["trials"], study["objectives"])
    return -1.0 if best is None else float(best["values"]["accuracy"])


def light_gaps(found: Found) -> list[float]:
    """For each seed, test accuracy less float, of the best choice with few enough bits."""
    groups = [
        records
        for records in found.choices("6-").values()
        if all(r["average_bits"] <= MOST_BITS for r in records)
    ]
    if not groups:
        return []
    best = max(groups, key=lambda records: records[0]["average_bits"])
    return [r["test"] - found.floats[r["seed"]] for r in best if r["seed"] in found.floats]


CLAIMS = (
    Claim("best architecture: accuracy", PUBLISHED[1], lambda f: best_final(f, "1-")),
    Claim("compression-aware: accuracy", PUBLISHED[2], lambda f: best_final(f, "2-train")),
    Claim("mixed formats: accuracy", PUBLISHED[5], lambda f: best_final(f, "5-")),
    Claim(f"at most {MOST_BITS:g} bits a weight: accuracy less float", -MOST_LOSS, light_gaps),
)


# -- tables -------------------------------------------------------------------------------------


def write(found: Found) -> str:
    """The page."""
    parts = [
        "# Searches around BERT-tiny on IMDb",
        _facts(found),
        f"    {COMMAND}\n    python bench/search/report.py mase_output/search",
        "## What is claimed",
        _table([c.row(found) for c in CLAIMS], ["claim", "bound", "test accuracy", "holds"]),
    ]
    for number, name in NAMES.items():
        if found.of(number):
            parts += [
                f"## {number}. {name}",
                BEGINNINGS.get(number, ""),
                _study_table(found, number),
            ]
            chosen = _choice_table(found, number)
            parts += [chosen] if chosen else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(found: Found) -> str:
    floats = list(found.floats.values())
    said = (
        "Points are chosen by accuracy on 4000 reviews held out of the training set. What was "
        "chosen is then trained on all 25000 training reviews and measured on the 25000 test "
        "reviews; cells are the mean over seeds with the lowest and highest."
    )
    if not found.finals:
        return said
    one = found.finals[0]
    trials = sum(len(study["trials"]) for study in found.studies.values())
    seeds = ", ".join(map(str, sorted(found.floats)))
    return (
        f"{said} {trials} trials; seeds {seeds}; {one['device']}, torch {one['torch']}.\n\n"
        f"Float, fine-tuned: {show(floats)}."
    )


def _study_table(found: Found, experiment: int) -> str:
    rows = []
    for study in found.of(experiment):
        best = best_trial(study["trials"], study["objectives"])
        if best is None:
            continue
        done = candidates(study["trials"])
        seconds = [t["seconds"] for t in study["trials"] if t["seconds"] is not None]
        rows.append(
            [
                label(study),
                study["sampler"],
                len(done),
                len(failures(study["trials"])),
                f"{best['values']['accuracy']:.4f}",
                best["number"],
                f"{statistics.fmean(seconds):.1f}",
                *([show_point(best["params"])] if experiment <= 2 else []),
            ]
        )
    headers = ["study", "sampler", "trials", "failed", "best, held out", "in trial", "s a trial"]
    return _table(rows, [*headers, *(["point"] if experiment <= 2 else [])])


def _choice_table(found: Found, experiment: int) -> str | None:
    rows = []
    for (name, choice), records in found.choices(f"{experiment}-").items():
        before = [r["test_before_training"] for r in records if r["test_before_training"]]
        gaps = [r["test"] - found.floats[r["seed"]] for r in records if r["seed"] in found.floats]
        rows.append(
            [
                f"{name.partition('-')[2]}, {choice}",
                f"{records[0]['average_bits']:.2f}",
                f"{records[0]['average_linear_bits']:.2f}",
                f"{records[0]['parameters'] / 1e6:.2f} M",
                show(before),
                show([r["test"] for r in records]),
                show(gaps),
            ]
        )
    headers = ["chosen", "bits a weight", "in linear layers", "parameters"]
    headers += ["test, not trained again", "test", "less float"]
    return _table(rows, headers) if rows else None


def _table(rows: Sequence[Sequence[Any]], headers: Sequence[str]) -> str:
    return str(tabulate(rows, headers, tablefmt="github", disable_numparse=True))


# -- figures ------------------------------------------------------------------------------------


def draw(found: Found, folder: Path) -> list[Path]:
    """Every figure there are records for."""
    written: list[Path] = []
    for number in (1, 2, 3, 4, 5):
        studies = {label(study): study for study in found.of(number) if has_results(study)}
        if studies:
            path = folder / f"{number}-best-so-far"
            levels = {"published": PUBLISHED[number]} if number in PUBLISHED else None
            written += draw_best_so_far(path, studies, levels=levels)
    written += _draw_architecture(found, folder)
    for number in (5, 6):
        for study in filter(has_results, found.of(number)):
            written += draw_format_counts(folder / f"{study['name']}-formats", study)
    written += _draw_best_maps(found, folder)
    for study in filter(has_results, found.of(6)):
        points = {"float": (32.0, _float_held_out(found))} if _float_held_out(found) else None
        written += draw_pareto(folder / f"{study['name']}-front", study, points=points)
    return written


def label(study: Any) -> str:
    """How a study is called in its experiment."""
    return str(study["name"].partition("-")[2])


def has_results(study: Any) -> bool:
    """Whether a trial of it is complete."""
    return bool(candidates(study["trials"]))


def _draw_architecture(found: Found, folder: Path) -> list[Path]:
    """Which dimension of the architecture matters, over the trials of every sampler."""
    studies = found.of(1)
    if not studies:
        return []
    trials = [trial for study in studies for trial in study["trials"]]
    whole = {**studies[0], "name": "architectures", "trials": trials}
    try:
        return draw_importance(folder / "1-importance", whole)
    except DataError as error:
        print(error)
        return []


def _draw_best_maps(found: Found, folder: Path) -> list[Path]:
    """The formats of the layers of the best trial of experiments 3 and 5, and of the light one."""
    written = []
    for number in (3, 5):
        best = [best_trial(s["trials"], s["objectives"]) for s in found.of(number)]
        known = [trial for trial in best if trial is not None]
        if known:
            trial = max(known, key=lambda t: t["values"]["accuracy"])
            written += draw_precision_map(folder / f"{number}-precision-map", trial)
    light = [
        trial
        for study in found.of(6)
        for trial in candidates(study["trials"])
        if trial["values"]["average_bits"] <= MOST_BITS
    ]
    if light:
        trial = max(light, key=lambda t: t["values"]["accuracy"])
        bits, accuracy = trial["values"]["average_bits"], trial["values"]["accuracy"]
        title = f"{bits:.2f} bits a weight: accuracy {accuracy:.4f} before training in the formats"
        written += draw_precision_map(folder / "6-precision-map", trial, title=title)
    return written


def _float_held_out(found: Found) -> float | None:
    """Accuracy of the float model on the held-out reviews: the study of the format `bypass`."""
    study = found.studies.get("4-bypass")
    best = best_trial(study["trials"], study["objectives"]) if study else None
    return None if best is None else float(best["values"]["accuracy"])


if __name__ == "__main__":
    main()
