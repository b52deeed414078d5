"""Greedy tokens of llama-imdb after every step that should not change them.

The truth is the eager model's own `generate` in transformers, for float steps; for a step that
changes values (packing) it is the eager model with those very values written into its weights.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from subject import Subject, agreement
from transformers import CompileConfig

import chop.passes as passes
from chop import MaseGraph
from chop.kernels import pack, unpack

SKIPPED = ("lm_head",)


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per step."""
    subject = Subject(asked)
    truth = subject.tokens(subject.model)
    graph = subject.graph()
    static = {"cache_implementation": "static"}
    yield record("captured", subject, graph, truth)
    yield record("captured, static cache", subject, graph, truth, **static)
    yield record("captured, compiled", subject, graph, truth, **static, **compiled())
    yield record("saved and loaded", subject, reloaded(graph), truth)
    for name, change in SAME.items():
        changed = copy.deepcopy(graph)
        change(changed)
        yield record(name, subject, changed, truth)
    for form in ("mxint8", "mxint4"):
        yield from packed_records(subject, graph, form)


SAME: dict[str, Callable[[MaseGraph], Any]] = {
    "adapters of LoRA, untrained": lambda g: passes.insert_lora_adapter_transform_pass(
        g, {"rank": 4, "alpha": 1.0, "dropout": 0.0}
    ),
    "dead code and constants folded": lambda g: (
        passes.init_metadata_analysis_pass(g),
        passes.add_common_metadata_analysis_pass(g),
        passes.fold_constants_transform_pass(g),
        passes.eliminate_common_subexpressions_transform_pass(g),
        passes.eliminate_dead_code_transform_pass(g),
    ),
}


def compiled() -> dict[str, Any]:
    """Options that compile the static cache's steps, on the CPU too."""
    config = CompileConfig(mode="default", fullgraph=True)
    config._compile_all_devices = True
    return {"compile_config": config}


def reloaded(graph: MaseGraph) -> MaseGraph:
    """The graph after a round trip through a file."""
    with tempfile.TemporaryDirectory() as folder:
        graph.export(Path(folder) / "graph")
        return MaseGraph.from_checkpoint(Path(folder) / "graph")


def packed_records(subject: Subject, graph: MaseGraph, form: str) -> Iterator[dict[str, Any]]:
    """Packed, against the eager model with the packed values as its weights; then from a file."""
    changed = copy.deepcopy(graph)
    passes.pack_weights_transform_pass(changed, {"format": form, "skip": SKIPPED})
    other = copy.deepcopy(subject.model)
    with torch.no_grad():
        for name, module in other.named_modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding) and name not in SKIPPED:
                module.weight.copy_(unpack(pack(module.weight, form)))
    expected = subject.tokens(other)
    yield record(f"packed {form}", subject, changed, expected)
    yield record(f"packed {form}, saved and loaded", subject, reloaded(changed), expected)


def record(
    step: str, subject: Subject, graph: MaseGraph, expected: torch.Tensor, **options: Any
) -> dict[str, Any]:
    """Agreement with the truth of this step, and perplexity."""
    found = subject.tokens(graph, **options)
    return {
        "step": step,
        **agreement(found, expected),
        "perplexity": subject.perplexity(graph.model),
    }
