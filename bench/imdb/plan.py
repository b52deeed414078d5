"""What is measured, most important first; and how each kind of point changes a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loop import Recipe
from torch import nn

from chop.actions.fixed_point import uniform_fixed_point
from chop.actions.study_subject import Subject
from chop.actions.sweeps import SWEEPS, Change
from chop.ir.graph import MaseGraph
from chop.passes import (
    fuse_lora_weights_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)

Point = dict[str, Any]

RECIPES: dict[str, Recipe] = {
    "base": Recipe(3e-4),
    "fixed_point_width": Recipe(5e-5),
    "integer_bits": Recipe(5e-5),
    "fraction_bits": Recipe(5e-5),
    "sparsity": Recipe(1e-4),
    "quantized_sparsity": Recipe(1e-4),
    "structure": Recipe(1e-4),
    "frozen_embeddings": Recipe(5e-4, epochs=2),
    "lora_rank": Recipe(3e-3, epochs=2),
}
"""How the points of each kind are trained."""

HEAD = ("bert.pooler", "classifier")
"""Not pretrained, so these train whole beside the adapters."""
EARLY_WIDTHS = (8, 16)
LATE_WIDTHS = (4, 6, 12, 24, 32)
RANKS = (8, 1, 2, 4, 12)
STRUCTURES = ("2:4", "heads and channels", "heads", "channels", "block")
LAB_SPARSITIES = (0.3, 0.5, 0.7)


def points(seed: int) -> list[Point]:
    """Every point for one seed, in order of priority; most start from what the first trains."""
    return [
        {"sweep": "base", "seed": seed},
        *_widths(EARLY_WIDTHS, seed),
        *_sparsities((0.5,), seed),
        {"sweep": "frozen_embeddings", "seed": seed},
        *_ranks(RANKS[:1], seed),
        *({"sweep": "structure", "structure": s, "seed": seed} for s in STRUCTURES[:2]),
        *_sparsities((0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9), seed),
        *_widths(LATE_WIDTHS, seed),
        *_ranks(RANKS[1:], seed),
        {"sweep": "fraction_bits", "fraction_bits": 5, "seed": seed},
        *_lab_sparsities(seed),
        *({"sweep": "structure", "structure": s, "seed": seed} for s in STRUCTURES[2:]),
        *_bits("integer_bits", (1, 2, 3, 4, 5, 6, 8, 10), seed),
        *_bits("fraction_bits", (0, 1, 2, 3, 4, 6, 8), seed),
    ]


def _widths(widths: tuple[int, ...], seed: int) -> list[Point]:
    splits = ("fitted", "half")
    return [
        {"sweep": "fixed_point_width", "split": split, "width": width, "seed": seed}
        for width in widths
        for split in splits
    ]


def _sparsities(sparsities: tuple[float, ...], seed: int) -> list[Point]:
    return [
        {"sweep": "sparsity", "method": method, "sparsity": sparsity, "seed": seed}
        for sparsity in sparsities
        for method in ("l1-norm", "random")
    ]


def _lab_sparsities(seed: int) -> list[Point]:
    return [
        {"sweep": "quantized_sparsity", "method": method, "sparsity": sparsity, "seed": seed}
        for sparsity in LAB_SPARSITIES
        for method in ("l1-norm", "random")
    ]


def _ranks(ranks: tuple[int, ...], seed: int) -> list[Point]:
    return [
        {"sweep": "lora_rank", "rank": rank, "modules_to_save": list(HEAD), "seed": seed}
        for rank in ranks
    ]


def _bits(sweep: str, bits: tuple[int, ...], seed: int) -> list[Point]:
    return [{"sweep": sweep, sweep: number, "seed": seed} for number in bits]


# -- changes that are not sweeps of the library -------------------------------------------------


def _nothing(graph: MaseGraph, subject: Subject, point: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _freeze_embeddings(
    graph: MaseGraph, subject: Subject, point: Mapping[str, Any]
) -> dict[str, Any]:
    """Only the linear layers train, whole: what the adapters are compared with."""
    for parameter in graph.model.parameters():
        parameter.requires_grad_(False)
    for module in graph.modules.values():
        if isinstance(module, nn.Linear):
            module.requires_grad_(True)
    trained = sum(p.numel() for p in graph.model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in graph.model.parameters())
    return {"trainable": trained, "total": total, "share": trained / total}


def _prune_quantized(
    graph: MaseGraph, subject: Subject, point: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Pruning on top of 16-bit fixed point."""
    quantize_transform_pass(graph, uniform_fixed_point(16, 8))
    return SWEEPS["sparsity"].change(graph, subject, point)


ENCODER = (r"bert\.encoder\..*",)
CHANNELS = ("intermediate.dense",)
STRUCTURE_ARGS: dict[str, list[dict[str, Any]]] = {
    "2:4": [{"granularity": "2:4"}],
    "block": [{"granularity": "block", "sparsity": 0.5, "target_modules": ENCODER}],
    "heads": [{"granularity": "head", "sparsity": 0.5}],
    "channels": [{"granularity": "channel", "sparsity": 0.5, "target_modules": CHANNELS}],
    "heads and channels": [
        {"granularity": "head", "sparsity": 0.5},
        {"granularity": "channel", "sparsity": 0.5, "target_modules": CHANNELS},
    ],
}
"""Structure -> the `weight` arguments of the pruning passes that make it."""


def _prune_structure(
    graph: MaseGraph, subject: Subject, point: Mapping[str, Any]
) -> dict[str, Any]:
    encoder = "bert.encoder."
    before = _size(graph, encoder)
    for weight in STRUCTURE_ARGS[point["structure"]]:
        prune_transform_pass(graph, {"weight": weight, "seed": point["seed"]})
    return {"encoder_before": before, "encoder_after": _size(graph, encoder)}


def _size(graph: MaseGraph, prefix: str) -> int:
    named = graph.model.named_parameters()
    return sum(p.numel() for name, p in named if name.startswith(prefix))


CHANGES: dict[str, Change] = {
    **{name: sweep.change for name, sweep in SWEEPS.items()},
    "base": _nothing,
    "frozen_embeddings": _freeze_embeddings,
    "quantized_sparsity": _prune_quantized,
    "structure": _prune_structure,
}
"""Kind of point -> what it does to a graph."""

PRETRAINED = ("base", "frozen_embeddings", "lora_rank")
"""Kinds that start from the pretrained model; the rest start from the fine-tuned one."""


def finish(graph: MaseGraph, point: Mapping[str, Any]) -> None:
    """What is done to a trained graph before it is evaluated: adapters become part of weights."""
    if point["sweep"] == "lora_rank":
        fuse_lora_weights_transform_pass(graph)
