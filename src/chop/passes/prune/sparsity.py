"""Measured sparsity of a graph's weights and activations."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata
from chop.ir.reclass import mask_name
from chop.passes.prune.activation_masks import activation_masks
from chop.passes.prune.prunable_layers import mask_of, prunable_layers, prunable_nodes
from chop.passes.rewrite.propagate import bind_inputs, propagate


def measure(graph: MaseGraph, dummy_in: Any = None) -> dict[str, Any]:
    """Return the share of zeros in each layer's weight, in all of them, and in pruned activations.

    `sparsity` is of the weights that can be pruned; `model_sparsity` of all parameters.
    """
    weights = {path: layer.weight.detach() for path, layer in prunable_layers(graph).items()}  # type: ignore[operator]
    zeros = {path: int((weight == 0).sum()) for path, weight in weights.items()}
    size = sum(weight.numel() for weight in weights.values())
    parameters = sum(p.numel() for p in graph.model.parameters())
    return {
        "sparsity": sum(zeros.values()) / max(size, 1),
        "model_sparsity": sum(zeros.values()) / max(parameters, 1),
        "layers": {path: zeros[path] / weight.numel() for path, weight in weights.items()},
        "activations": _activations(graph, dummy_in),
    }


def _activations(graph: MaseGraph, dummy_in: Any) -> dict[str, float]:
    masks = activation_masks(graph)
    shares: dict[str, float] = {}

    def record(node: fx.Node, result: Any) -> None:
        if node in masks:
            shares[str(node.target)] = float((result == 0).float().mean())

    if masks and (dummy_in is not None or graph.dummy_in is not None):
        propagate(graph, bind_inputs(graph, dummy_in, "dummy_in"), record, real=True)
    return shares


def annotate_sparsity(graph: MaseGraph, info: dict[str, Any]) -> None:
    """Write measured sparsity into the metadata of nodes that have metadata."""
    for node in prunable_nodes(graph):
        meta, path = node.meta.get("mase"), str(node.target)
        if not isinstance(meta, MaseMetadata):
            continue
        meta.software.sparsity = {"weight": info["layers"][path]}
        is_masked = mask_of(graph.model.get_submodule(path)) is not None
        meta.software.masks = {"weight": f"{path}.{mask_name('weight')}"} if is_masked else None
    for node in activation_masks(graph):
        meta = node.meta.get("mase")
        share = info["activations"].get(str(node.target))
        if isinstance(meta, MaseMetadata) and share is not None:
            meta.software.sparsity = {"activation": share}
