"""Measure the share of zeros in a graph's weights and activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.prune.sparsity import annotate_sparsity, measure


@dataclass(frozen=True)
class CalculateSparsityArgs:
    """Settings of the pass. `dummy_in`: inputs for activations; the graph's own if None."""

    dummy_in: Any = None


@graph_pass("calculate_sparsity_analysis_pass", CalculateSparsityArgs)
def calculate_sparsity_analysis_pass(graph: MaseGraph, args: CalculateSparsityArgs) -> PassResult:
    """Count the zeros in the weights of linear and convolution layers, and in pruned activations.

    `info["layers"]` maps a path to the share of zeros in its weight; `info["sparsity"]` is the
    share over all of them. `info["model_sparsity"]` is that of all parameters of the model, and
    `info["activations"]` that of each pruned activation on `dummy_in`.
    If the graph has metadata, a layer's node gets this as `software.sparsity`, and the name of its
    mask as `software.masks`.
    """
    info = measure(graph, args.dummy_in)
    annotate_sparsity(graph, info)
    return graph, info
