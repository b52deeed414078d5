"""What removing half of the heads and half of the intermediate width gains on a CPU.

An encoder with the shapes of BERT-base and random weights, traced; a copy of it pruned; both run
on the same inputs, interleaved, and compared by their medians.

    python bench/prune_structured.py [--layers N] [--rounds N] [--batch N] [--length N]
"""

from __future__ import annotations

import argparse
import copy
import sys
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

import torch
import transformers
from measuring.checked import Timed, once
from measuring.checked import compare as compare_times
from measuring.record import save
from torch import Tensor, nn

from chop import MaseGraph
from chop.passes import prune_transform_pass

LIMIT = 1.6
TOLERANCE = 1e-4
"""Relative error of float32 over 12 layers, against float64."""
HEADS = {"weight": {"sparsity": 0.5, "granularity": "head"}}
WIDTH = {
    "weight": {
        "sparsity": 0.5,
        "granularity": "channel",
        "target_modules": ["intermediate.dense"],
    }
}


def encoder(layers: int) -> MaseGraph:
    """The graph of a BERT-base shaped encoder in evaluation mode."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers)
    model = transformers.BertModel(config).eval()
    return MaseGraph(model, hf_input_names=["input_ids", "attention_mask"])


def pruned(graph: MaseGraph) -> tuple[MaseGraph, float]:
    """A copy without half of the heads and of the intermediate width, and the time it took."""
    small = copy.deepcopy(graph)
    took = once(
        "prune",
        lambda: [prune_transform_pass(small, args) for args in (HEADS, WIDTH)],
        lambda _: parameters(small.model, "encoder.") < 0.6 * parameters(graph.model, "encoder."),
    )
    return small, took.seconds


def in_double(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the output of a copy of the model in float64."""
    return copy.deepcopy(model).double()(**inputs).last_hidden_state


def compare(whole: nn.Module, small: nn.Module, inputs: dict[str, Tensor], rounds: int) -> Any:
    """Times of both models, taken in turns."""
    with torch.inference_mode():
        programs = {
            name: Timed(
                lambda m=model: m(**inputs).last_hidden_state,
                lambda m=model: in_double(m, inputs),
                TOLERANCE,
            )
            for name, model in (("whole", whole), ("pruned", small))
        }
        times = compare_times(programs, rounds=rounds, warm_up=1)
    ratios = times["whole"].ratios(times["pruned"])
    return {
        "whole_seconds": times["whole"].median,
        "pruned_seconds": times["pruned"].median,
        "speedup": times["whole"].median / times["pruned"].median,
        "speedup_of_rounds": [min(ratios), max(ratios)],
    }


def parameters(model: nn.Module, inside: str = "") -> int:
    """The number of parameters under a path."""
    return sum(p.numel() for name, p in model.named_parameters() if name.startswith(inside))


def main() -> int:
    """Run, print and save; 1 where the speed-up is below the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    given = parser.parse_args()
    graph = encoder(given.layers)
    small, prune_seconds = pruned(graph)
    ids = torch.randint(0, 30000, (given.batch, given.length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    result = {
        "shape": vars(given) | {"threads": torch.get_num_threads()},
        "parameters": [parameters(g.model) for g in (graph, small)],
        "encoder_parameters": [parameters(g.model, "encoder.") for g in (graph, small)],
        "prune_seconds": prune_seconds,
        **compare(graph.model, small.model, inputs, given.rounds),
        "limit": LIMIT,
    }
    for key, value in result.items():
        print(f"{key}: {value}")
    print(f"saved {save('prune_structured', result)}")
    return int(result["speedup"] < LIMIT)


if __name__ == "__main__":
    sys.exit(main())
