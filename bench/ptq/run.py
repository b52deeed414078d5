"""Quantise llama-imdb and BERT-tiny in every format by every method, and measure.

    python bench/ptq/fine_tune.py --data DATA/imdb --model MODELS/bert-tiny --out out/ptq/bert
    python bench/ptq/run.py --llama MODELS/llama-imdb --bert out/ptq/bert --data DATA/imdb

Every row is written to --work as soon as it is found: a run that is interrupted goes on where it
stopped, and processes may share a folder. When the code changes, empty it. The rows of each model
are a section of bench/results/ptq.json. From it, report.py makes the tables of
docs/results_quantisation.md.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
from pathlib import Path
from typing import Any

import torch
from methods import FORMATS, METHODS, rules
from rows import Row, Rows, read_rows
from schemes import SCHEMES
from subjects import CALIBRATION, SEEDS, Subject, add_options, subjects

from chop import MaseGraph
from chop.actions.post_training import quantize_with_data

sys.path.append(str(Path(__file__).parents[1]))
from measuring.checked import is_sound, once
from measuring.record import save_section


def main() -> None:
    """Measure what is missing, then write the table."""
    args = _arguments()
    rows = Rows(args.work / "ours.jsonl")
    for subject in subjects(args):
        bench = _Bench(subject)
        rows.make(bench.names("float", "float", None), bench.float_row)
        for scheme, method, seed in _wanted(args):
            names = bench.names(scheme, method, seed)
            rows.make(names, lambda b=bench, n=names: b.row(n))  # type: ignore[misc]
        if args.save:
            own = [row for row in read_rows(rows.file) if row["subject"] == subject.name]
            print(save_section("ptq", subject.name, own))


def _wanted(args: argparse.Namespace) -> list[tuple[str, str, int | None]]:
    """Plain rounding needs no data, so it has one row."""
    plans = [(s, "nearest", None) for s in args.schemes if "nearest" in args.methods]
    others = [m for m in args.methods if m != "nearest"]
    return plans + [(s, m, seed) for seed in args.seeds for m in others for s in args.schemes]


class _Bench:
    """One model, traced when the first row needs it, and the float model's logits."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @functools.cached_property
    def graph(self) -> MaseGraph:
        """The float model's."""
        dummy = {k: v[:2] for k, v in self.subject.calibration(0)[0].items()}
        return MaseGraph(self.subject.load(), list(dummy), dummy)

    @functools.cached_property
    def reference(self) -> list[torch.Tensor]:
        """Logits to compare with."""
        return self.subject.reference(self.graph.model)

    def names(self, scheme: str, method: str, seed: int | None) -> Row:
        return {
            "subject": self.subject.name,
            "scheme": scheme,
            "method": method,
            "seed": seed,
            "held": self.subject.held,
            "calibration": CALIBRATION[self.subject.name],
        }

    def float_row(self) -> Row:
        return {**self.subject.measured(self.graph.model, self.reference)}

    def row(self, names: Row) -> Row:
        graph = copy.deepcopy(self.graph)
        method, options = METHODS[names["method"]]
        found: dict[str, Any] = {}

        def quantise() -> None:
            batches = self.subject.calibration(names["seed"] or 0)
            chosen = rules(self.subject, graph.model, names["scheme"])
            quantize_with_data(graph, chosen, batches, method, options)

        def is_measured(_: None) -> bool:
            found.update(self.subject.measured(graph.model, self.reference))
            return is_sound([v for v in found.values() if isinstance(v, float)])

        took = once(method, quantise, is_measured)
        return {**found, "seconds": round(took.seconds, 1)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--work", type=Path, default=Path("out/ptq"))
    parser.add_argument("--schemes", nargs="*", default=[*SCHEMES, *FORMATS])
    parser.add_argument("--methods", nargs="*", default=["nearest", "gptq"], choices=METHODS)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--no-save", dest="save", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    main()
