"""How well losses are predicted, and what the assignments of bits made from them are worth.

    python bench/ptq/allocation.py --llama MODELS/llama-imdb --bert out/ptq/bert --data DATA/imdb

For each model: the rank correlation of predicted and true loss over random assignments of widths to
layers; the processor time of the prediction against that of the sweep one layer at a time; the true
loss of the assignment at several budgets against one width for all layers and against a greedy
assignment; and whether repeated runs with one and two threads give the same assignment. The true
loss is the divergence from the float model on text that the prediction has not seen.
Writes bench/results/ptq_allocation.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from subjects import Batch, Subject, add_options, subjects

from chop import MaseGraph
from chop.actions.post_training import weight_formats
from chop.passes import (
    allocate_bits_analysis_pass,
    quantize_transform_pass,
    sensitivity_analysis_pass,
)
from chop.passes.graph.analysis.allocate_bits import AllocateBitsArgs, Problem
from chop.passes.graph.analysis.sensitivity import compared, outputs

sys.path.append(str(Path(__file__).parents[1]))
from measuring.checked import once
from measuring.progress import Stopwatch
from measuring.record import save_section

FORMATS = weight_formats("mxint")
WIDTH = {label: config["weight_width"] for label, config in FORMATS.items()}
BUDGETS = (3.25, 3.75, 4.25, 4.75, 5.25, 6.25)
"""Bits of a weight with its share of the block's exponent: some are those of one width for all."""
ROWS = {"llama-imdb": (64, 8, 64), "bert-tiny": (256, 250, 64)}
"""Rows to predict from, rows to measure on, tokens of a row."""
RUNS, REPEATED = 10, 1
"""Repeated runs with each number of threads, and the batches that they predict from."""
Assignment = Mapping[str, str]


def main() -> None:
    """Measure each model and write what was found."""
    args = _arguments()
    for subject in subjects(args):
        watch = Stopwatch()
        study = Study(subject)
        found = {
            "rows": dict(zip(("scored", "measured", "tokens"), ROWS[subject.name], strict=True)),
            **study.speed(args.swept),
            **study.correlation(args.assignments),
            "budgets": [study.at_budget(budget) for budget in BUDGETS],
            "repeats": study.repeats(args.repeats),
            "seconds": round(watch.seconds, 1),
        }
        print(json.dumps(found, indent=2))
        print(save_section("ptq_allocation", subject.name, found))


class Study:
    """One model, its table of predicted losses, and the truth."""

    def __init__(self, subject: Subject) -> None:
        scored, measured, tokens = ROWS[subject.name]
        self.subject = subject
        self.data = cut(subject.calibration(0, scored), tokens)
        self.graph = MaseGraph(
            subject.load(), list(self.data[0]), {k: v[:2] for k, v in self.data[0].items()}
        )
        self.held = cut(list(replace(subject, held=measured).evaluation()), tokens)
        self.expected = list(outputs(self.graph, self.held, "bench"))
        self.layers = tuple(
            name
            for name, layer in self.graph.model.named_modules()
            if isinstance(layer, torch.nn.Linear) and name not in subject.head
        )
        self.found, self.seconds = self.score()
        self.problem = Problem.of(AllocateBitsArgs(**self.found, budget=1.0))

    def score(self, batches: int | None = None) -> tuple[dict[str, Any], float]:
        """The table of predicted losses, and how long it took."""
        args = {"data": self.data[:batches], "formats": FORMATS, "layers": self.layers}
        took = once("score", lambda: sensitivity_analysis_pass(self.graph, args)[1], bool)
        return took.result, took.processor_seconds

    def speed(self, swept: int) -> dict[str, Any]:
        """The prediction's time against the sweep's, measured on `swept` layers of all."""
        some = self.layers[:: max(1, len(self.layers) // swept)][:swept]
        args = {"data": self.data, "formats": FORMATS, "layers": some, "method": "sweep"}
        took = once("sweep", lambda: sensitivity_analysis_pass(self.graph, args)[1], bool)
        whole = took.processor_seconds / len(some) * len(self.layers)
        return {
            "layers": len(self.layers),
            "score_seconds": round(self.seconds, 2),
            "sweep_seconds": round(whole, 2),
            "swept_layers": len(some),
            "times_faster": round(whole / self.seconds, 1),
        }

    def correlation(self, count: int) -> dict[str, Any]:
        """Rank correlation over random assignments."""
        draw = random.Random(0)
        labels = list(FORMATS)
        nodes = list(dict.fromkeys(row["node"] for row in self.found["table"]))
        pairs = []
        for number in range(count):
            taken = {node: draw.choice(labels) for node in nodes}
            pairs.append((self.predicted(taken), self.true_loss(taken)))
            if number % 20 == 19:
                so_far = spearmanr(*zip(*pairs, strict=True)).statistic
                print(f"{self.subject.name}: {number + 1} of {count}, {so_far:.3f}", flush=True)
        return {
            "assignments": count,
            "rank_correlation": round(float(spearmanr(*zip(*pairs, strict=True)).statistic), 4),
            "pairs": [[float(f"{x:.5g}") for x in pair] for pair in pairs],
        }

    def predicted(self, taken: Assignment) -> float:
        """What an assignment is predicted to lose."""
        table = self.found["table"]
        rows = [i for i, r in enumerate(table) if taken[r["node"]] == r["format"]]
        return self.problem.loss(rows)

    def true_loss(self, taken: Assignment) -> float:
        """The divergence from the float model on held-out rows."""
        changed = copy.deepcopy(self.graph)
        rules = {node: {"config": FORMATS[label]} for node, label in taken.items()}
        quantize_transform_pass(changed, {"by": "name", **rules})
        return compared(changed, self.held, self.expected, "bench")["loss"]

    def at_budget(self, budget: float) -> dict[str, Any]:
        """True losses at one budget: allocated, greedy, and one width for all."""
        _, chosen = allocate_bits_analysis_pass(self.graph, {**self.found, "budget": budget})
        taken = {"allocated": chosen["assignment"], "greedy": self.greedy(budget)}
        within = [label for label in FORMATS if self.cost(self.uniform(label)) <= budget + 1e-9]
        taken["uniform"] = self.uniform(max(within, key=WIDTH.__getitem__))
        row: dict[str, Any] = {"budget": budget}
        for name, each in taken.items():
            row[name] = {"bits": round(self.cost(each), 4), "loss": self.true_loss(each)}
        others = min(row["greedy"]["loss"], row["uniform"]["loss"])
        row["is_best"] = row["allocated"]["loss"] <= others
        print(self.subject.name, json.dumps(row), flush=True)
        return row

    def uniform(self, label: str) -> dict[str, str]:
        """The same width for all."""
        return {row["node"]: label for row in self.found["table"]}

    def cost(self, taken: Assignment) -> float:
        """Bits of an average weight."""
        rows = [r for r in self.found["table"] if taken[r["node"]] == r["format"]]
        return float(
            sum(r["bits"] * r["elements"] for r in rows) / sum(r["elements"] for r in rows)
        )

    def greedy(self, budget: float) -> dict[str, str]:
        """From the widest down, always where a bit saved is predicted to cost least."""
        rows = {(r["node"], r["format"]): r for r in self.found["table"]}
        order = sorted(FORMATS, key=WIDTH.__getitem__)
        taken = self.uniform(order[-1])
        while self.cost(taken) > budget + 1e-9:
            steps = []
            for node, label in taken.items():
                if label == order[0]:
                    continue
                lower = order[order.index(label) - 1]
                old, new = rows[node, label], rows[node, lower]
                saved = (old["bits"] - new["bits"]) * old["elements"]
                steps.append(((new["loss"] - old["loss"]) / saved, node, lower))
            _, node, lower = min(steps)
            taken[node] = lower
        return taken

    def repeats(self, runs: int) -> dict[str, Any]:
        """Whether assignments are the same in every run, with one thread and with two."""
        first, same, threads = None, True, torch.get_num_threads()
        for count in (1, 2):
            torch.set_num_threads(count)
            for _ in range(runs):
                found, _ = self.score(REPEATED)
                for budget in BUDGETS[::2]:
                    args = {**found, "budget": budget}
                    _, chosen = allocate_bits_analysis_pass(self.graph, args)
                    first = first or {}
                    same &= first.setdefault(budget, chosen["assignment"]) == chosen["assignment"]
        torch.set_num_threads(threads)
        return {"runs": runs, "threads": [1, 2], "device": self.subject.device, "same": same}


def cut(batches: list[Batch], tokens: int) -> list[Batch]:
    """The first `tokens` of each row, without labels."""
    return [{k: v[:, :tokens] for k, v in b.items() if k != "labels"} for b in batches]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--assignments", type=int, default=200)
    parser.add_argument("--swept", type=int, default=2, help="layers whose sweep is timed")
    parser.add_argument("--repeats", type=int, default=RUNS, help="runs for each number of threads")
    return parser.parse_args()


if __name__ == "__main__":
    main()
