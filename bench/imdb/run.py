"""Fine-tuning, quantisation, pruning and adapters of BERT-tiny on the IMDb reviews.

    python bench/imdb/run.py --data DATA/imdb --model MODELS/bert-tiny --out mase_output/imdb

DATA/imdb has the token arrays (tokens/train.npz, tokens/test.npz), MODELS/bert-tiny the
pretrained model. Every measurement is one line of <out>/seed-<n>.jsonl, written as soon as it is
made: run the same command again and it goes on where it stopped. `report.py` makes the tables.
On a GPU each seed is a process of its own. --smoke shows on a CPU that everything runs; --tune
compares learning rates on reviews held out of the training split.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from batches import Reviews, evenly
from loop import CaptureError, Recipe, evaluate, train
from plan import CHANGES, PRETRAINED, RECIPES, finish, points
from safetensors.torch import load_file, save_file

from chop.actions.records import append_record, find_record, read_records
from chop.actions.resumable import duration
from chop.actions.study_subject import Subject
from chop.actions.sweeps import measure_change
from chop.dataset import TokenArrays, load_token_arrays
from chop.ir.graph import MaseGraph
from chop.models import get_model
from chop.passes import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

START = time.monotonic()
INPUTS = ("input_ids", "attention_mask", "labels")
OBSERVED = 64
"""Reviews on which activations are observed."""


def main() -> int:
    """Run what the command line asks for."""
    options = parse_arguments()
    if options.smoke:
        options.seeds, options.limit, options.max_token_len = [0], 128, 32
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and len(options.seeds) > 1 and not options.serial:
        return run_seeds_apart(options)
    torch.set_float32_matmul_precision("high")
    bench = Bench(options, device)
    try:
        for seed in options.seeds:
            if not (tune(bench, seed) if options.tune else run_seed(bench, seed)):
                print(f"budget of {options.budget_seconds:.0f} s reached", flush=True)
                return 0
    except CaptureError as error:
        # A failed capture may leave the CUDA context unusable: a new process is clean.
        print(f"CUDA graphs are off: {error}", flush=True)
        left = options.budget_seconds - (time.monotonic() - START)
        command = [*sys.argv, "--no-cuda-graphs", f"--budget-seconds={left:.0f}"]
        os.execv(sys.executable, [sys.executable, *command])
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=Path, required=True, help="folder with tokens/*.npz")
    parser.add_argument("--model", type=Path, required=True, help="folder of the pretrained model")
    parser.add_argument("--out", type=Path, default=Path("mase_output/imdb"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument("--limit", type=int, help="use so many reviews of each split")
    parser.add_argument("--max-token-len", type=int, default=512)
    parser.add_argument("--only", nargs="+", choices=sorted(CHANGES), help="kinds of points")
    parser.add_argument("--serial", action="store_true", help="seeds one after the other")
    parser.add_argument("--no-cuda-graphs", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="a minute on a CPU, few reviews")
    parser.add_argument("--tune", action="store_true", help="learning rates on held-out reviews")
    return parser.parse_args()


def run_seeds_apart(options: argparse.Namespace) -> int:
    """One process for each seed, so that the host's work for one hides behind the others'."""
    base = [a for a in sys.argv if a != "--serial"]
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    running = [
        subprocess.Popen([sys.executable, *base, "--serial", "--seeds", str(seed)], env=environment)
        for seed in options.seeds
    ]
    return max(process.wait() for process in running)


class Bench:
    """Data and models of a run, loaded once."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device = options, device
        data = load_token_arrays(options.data / "tokens", options.max_token_len)
        splits = [evenly(data["train"], options.limit), evenly(data["test"], options.limit)]
        if options.tune:
            splits = held_out(splits[0])
        self.observed = Reviews.on(splits[0].select(range(min(OBSERVED, len(splits[0])))), _CPU)
        self.train_reviews, self.test_reviews = (Reviews.on(each, device) for each in splits)
        self.facts = {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "cuda_graphs": device.type == "cuda" and not options.no_cuda_graphs,
            "reviews": [len(self.train_reviews), len(self.test_reviews)],
        }

    @functools.cached_property
    def pretrained(self) -> MaseGraph:
        """The pretrained model as a graph; every other graph is a copy of it."""
        graph = MaseGraph(get_model(self.options.model), hf_input_names=INPUTS)
        init_metadata_analysis_pass(graph)
        add_common_metadata_analysis_pass(graph, {"add_value": False})
        add_software_metadata_analysis_pass(graph)  # once, so that copies need not
        return graph

    def fresh(self, seed: int) -> MaseGraph:
        """A copy of the pretrained graph whose untrained head is drawn by `seed`."""
        graph = copy.deepcopy(self.pretrained)
        generator = torch.Generator().manual_seed(seed)
        for name in ("bert.pooler.dense", "classifier"):
            layer = graph.modules[name]
            torch.nn.init.normal_(layer.weight, std=0.02, generator=generator)
            torch.nn.init.zeros_(layer.bias)
        return graph

    def base_file(self, seed: int) -> Path:
        """Where the fine-tuned model of `seed` is kept between runs."""
        return self.options.out / f"base-{seed}.safetensors"

    def fine_tuned(self, seed: int) -> MaseGraph:
        """A copy of the fine-tuned graph of `seed`."""
        graph = copy.deepcopy(self.pretrained)
        graph.model.load_state_dict(load_file(self.base_file(seed)))
        return graph

    def subject(self, point: Mapping[str, Any], recipe: Recipe) -> Subject:
        """What `point` is measured on."""
        graphs = not self.options.no_cuda_graphs

        def train_graph(graph: MaseGraph, seed: int) -> None:
            train(graph.model.to(self.device), self.train_reviews, recipe, seed, graphs)
            graph.model.cpu()  # where its example inputs are: passes may run it on them
            finish(graph, point)

        def evaluate_graph(graph: MaseGraph) -> float:
            return evaluate(graph.model.to(self.device), self.test_reviews)

        def batches() -> list[Any]:
            return list(self.observed.in_order(32))

        start = self.fresh if point["sweep"] in PRETRAINED else self.fine_tuned
        return Subject(start, train_graph, evaluate_graph, batches)


_CPU = torch.device("cpu")


def held_out(data: TokenArrays) -> list[TokenArrays]:
    """The training reviews in two parts, four fifths to train on and one to choose by."""
    rows = np.random.default_rng(0).permutation(len(data))
    cut = len(data) * 4 // 5
    return [data.select(np.sort(rows[:cut])), data.select(np.sort(rows[cut:]))]


def run_seed(bench: Bench, seed: int) -> bool:
    """Measure what is missing for `seed`; False where the budget ended it."""
    path = bench.options.out / f"seed-{seed}.jsonl"
    wanted = chosen_points(bench.options, seed)
    times: list[float] = []
    for number, point in enumerate(wanted, start=1):
        is_there = find_record(read_records(path), point) is not None
        if is_there and (point["sweep"] != "base" or bench.base_file(seed).is_file()):
            continue
        start = time.monotonic()
        if start - START + max(times, default=0.0) > bench.options.budget_seconds:
            return False
        record = measure_point(bench, point, RECIPES[point["sweep"]])
        seconds = time.monotonic() - start
        times.append(seconds)
        append_record(path, {**record, "seconds": round(seconds, 2)})
        left = duration(sum(times) / len(times) * (len(wanted) - number))
        print(f"seed {seed}, {number} of {len(wanted)}, {left} left: {show(record)}", flush=True)
    return True


DISTINCT = ("sweep", "split", "structure")
"""Fields of which --smoke tries every combination once."""


def chosen_points(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """The points to measure; the fine-tuned model is always one."""
    wanted = points(seed)
    if options.smoke:
        kinds = {tuple(p.get(k) for k in DISTINCT): p for p in reversed(wanted)}
        wanted = list(reversed(kinds.values()))
    only = options.only
    return [p for p in wanted if only is None or p["sweep"] in ("base", *only)]


def measure_point(bench: Bench, point: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """The record of one point; the fine-tuned model is kept for the points that start from it."""
    subject = bench.subject(point, recipe)
    if point["sweep"] == "base":
        subject = keeping(bench, subject)
    measured = measure_change(subject, point, CHANGES[point["sweep"]])
    if point["sweep"] == "base":
        check_learning(bench, measured["after"])
    settings = {"learning_rate": recipe.learning_rate, "epochs": recipe.epochs}
    return {**point, **measured, **settings, **bench.facts}


def check_learning(bench: Bench, accuracy: float) -> None:
    """A captured step that does not learn is a capture that went wrong without saying so."""
    if bench.facts["cuda_graphs"] and bench.options.limit is None and accuracy < 0.75:
        raise CaptureError(f"the replayed steps reach an accuracy of {accuracy:.3f} only")


def keeping(bench: Bench, subject: Subject) -> Subject:
    """A subject that saves what it trained."""

    def train_and_save(graph: MaseGraph, seed: int) -> None:
        subject.train(graph, seed)
        bench.options.out.mkdir(parents=True, exist_ok=True)
        target = bench.base_file(seed)
        state = {k: v.detach().cpu().contiguous() for k, v in graph.model.state_dict().items()}
        save_file(state, target.with_suffix(".partial"))
        os.replace(target.with_suffix(".partial"), target)

    return Subject(subject.graph, train_and_save, subject.evaluate, subject.batches)


SETTINGS = {
    "base": (2e-4, 3e-4, 5e-4),
    "fixed_point_width": (2e-5, 5e-5, 1e-4),
    "sparsity": (5e-5, 1e-4, 2e-4),
    "frozen_embeddings": (3e-4, 5e-4, 1e-3),
    "lora_rank": (1e-3, 3e-3, 6e-3),
}
"""Learning rates that --tune compares, on the first point of each kind."""


def tune(bench: Bench, seed: int) -> bool:
    """Compare learning rates by accuracy on the reviews held out; the test split is not read."""
    bench.options.out = bench.options.out / "tune"
    for kind, rates in SETTINGS.items():
        point = next(p for p in points(seed) if p["sweep"] == kind)
        for rate in rates:
            if time.monotonic() - START > bench.options.budget_seconds:
                return False
            recipe = Recipe(rate, RECIPES[kind].epochs)
            record = measure_point(bench, point, recipe)
            append_record(bench.options.out / f"seed-{seed}.jsonl", record)
            print(show(record), flush=True)
        if kind == "base":  # the points that follow start from the model of the usual rate
            measure_point(bench, point, RECIPES[kind])
    return True


HIDDEN = ("modules_to_save", "device", "torch", "cuda_graphs", "reviews", "total")


def show(record: Mapping[str, Any]) -> str:
    """A record on one line."""
    return "  ".join(f"{k} {_short(v)}" for k, v in record.items() if k not in HIDDEN)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
