"""How much of a model is left when half of its weights are zero, by method and pattern.

    python bench/prune_methods.py --llama MODELS/llama-imdb --bert out/ptq/bert --data DATA/imdb

Perplexity of llama-imdb on held-out text and accuracy of a BERT-tiny classifier (which
bench/ptq/fine_tune.py makes) on test reviews: the models, tokens and measures of bench/ptq. All
linear layers but the head are pruned, without training, by magnitude, by Wanda and by SparseGPT, to
half of the weights anywhere, to 4:8 and to 2:4; and to 2:4 with what stays in 4 bits. Methods that
calibrate see the training text. Writes bench/results/prune_methods.json.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package
sys.path.append(str(Path(__file__).parent / "ptq"))

import torch
from measuring.checked import once
from measuring.record import save_section
from subjects import CALIBRATION, Batch, Subject, add_options, subjects

from chop import MaseGraph
from chop.passes import gptq_transform_pass, prune_transform_pass, quantize_transform_pass

PATTERNS: dict[str, dict[str, Any]] = {
    "50 %": {"sparsity": 0.5},
    "4:8": {"granularity": "4:8"},
    "2:4": {"granularity": "2:4"},
}
METHODS = ("l1-norm", "wanda", "sparsegpt")
FOUR_BITS = {
    "name": "scale_integer",
    "weight_width": 4,
    "weight_granularity": "group",
    "weight_group_size": 64,
    "data_in_width": "NA",
    "bias_width": "NA",
}


def layers_of(graph: MaseGraph, head: tuple[str, ...]) -> list[str]:
    """The linear layers that are pruned."""
    named = graph.model.named_modules()
    return [p for p, m in named if isinstance(m, torch.nn.Linear) and p not in head]


def pruned(
    graph: MaseGraph, layers: list[str], batches: list[Batch], method: str, pattern: str
) -> tuple[MaseGraph, dict[str, Any]]:
    """A pruned copy, and what was found while it was made."""
    made = copy.deepcopy(graph)
    weight = {"method": method, "target_modules": layers, **PATTERNS[pattern]}
    args = {"weight": weight, "batches": batches}
    took = once(
        f"{method}, {pattern}",
        lambda: prune_transform_pass(made, args)[1]["layers"],
        lambda info: all(0.4 < info[path] < 0.6 for path in layers),  # half of each layer
    )
    shares = [took.result[path] for path in layers]
    return made, {"zeros": [min(shares), max(shares)], "seconds": round(took.seconds, 1)}


def in_four_bits(graph: MaseGraph, layers: list[str], batches: list[Batch]) -> None:
    """Round what stays of the pruned weights to 4 bits; the zeros stay."""
    nodes = {str(n.target): n.name for n in graph.fx_graph.nodes if n.op == "call_module"}
    rules = {nodes[path]: {"config": FOUR_BITS} for path in layers}
    quantize_transform_pass(graph, {"by": "name", **rules})
    gptq_transform_pass(graph, {"data": batches, "rows": "equal", "rounds": 1})


def rows_of(subject: Subject) -> list[dict[str, Any]]:
    """One row for each method and pattern, the whole model first."""
    batches = subject.calibration(0)
    dummy = {k: v[:2] for k, v in batches[0].items()}
    graph = MaseGraph(subject.load(), list(dummy), dummy)
    layers, reference = layers_of(graph, subject.head), subject.reference(graph.model)
    rows: list[dict[str, Any]] = []

    def add(names: dict[str, str], model: Any, told: dict[str, Any]) -> None:
        rows.append({**names, **subject.measured(model, reference), **told})
        print(subject.name, rows[-1], flush=True)

    add({"method": "none", "pattern": "whole"}, graph.model, {})
    for pattern in PATTERNS:
        for method in METHODS:
            made, told = pruned(graph, layers, batches, method, pattern)
            add({"method": method, "pattern": pattern}, made.model, told)
    in_four_bits(made, layers, batches)
    add({"method": "sparsegpt, gptq", "pattern": "2:4, 4 bits"}, made.model, {})
    return rows


def main() -> None:
    """Measure the models that are given, and save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    for subject in subjects(parser.parse_args()):
        found = {
            "calibration": CALIBRATION[subject.name],
            "held": subject.held,
            "rows": rows_of(subject),
        }
        print(f"saved {save_section('prune_methods', subject.name, found)}")


if __name__ == "__main__":
    main()
