"""Masks on the inputs of chosen layers, as nodes of the graph."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.nn.modules.activation_mask import ActivationMask
from chop.passes.prune.prunable_layers import prunable_nodes
from chop.passes.prune.pruning_config import PruneActivation, PruneArgs
from chop.passes.rewrite.module_patterns import select
from chop.passes.rewrite.propagate import bind_inputs, propagate
from chop.passes.rewrite.surgery import bypass, drop_unused_modules, set_module

SUFFIX = "_activation_mask"


def activation_masks(graph: MaseGraph) -> dict[fx.Node, ActivationMask]:
    """Return the nodes that prune activations, with their masks."""
    calls = ((n, node_module(n)) for n in graph.fx_graph.nodes if n.op == "call_module")
    return {n: module for n, module in calls if isinstance(module, ActivationMask)}


def prune_activations(graph: MaseGraph, config: PruneActivation, args: PruneArgs) -> list[str]:
    """Insert a mask before each chosen layer, replacing older masks; return the layers' paths."""
    nodes = prunable_nodes(graph)
    paths = list(dict.fromkeys(str(node.target) for node in nodes))
    chosen = select(config.target_modules, paths, "prune.activation.target_modules")
    nodes = [node for node in nodes if str(node.target) in chosen]
    for source in (node.all_input_nodes[0] for node in nodes):
        if source in activation_masks(graph):
            bypass(source, source.all_input_nodes[0])
            drop_unused_modules(graph, [str(source.target)])
    threshold = _threshold(graph, nodes, config, args) if config.scope == "global" else None
    for node in nodes:
        path = f"{node.target}{SUFFIX}"
        seed = args.seed + zlib.crc32(path.encode())
        mask = ActivationMask(config.sparsity, config.method, seed=seed, threshold=threshold)
        mask.to(next(node_module(node).parameters()).device)
        set_module(graph, path, mask)
        source = node.all_input_nodes[0]
        with graph.fx_graph.inserting_before(node):
            node.replace_input_with(source, graph.fx_graph.call_module(path, (source,)))
    return chosen


def remove_activation_masks(graph: MaseGraph) -> list[str]:
    """Remove every activation mask from the graph; return their paths."""
    masks = activation_masks(graph)
    for node in masks:
        bypass(node, node.all_input_nodes[0])
    return drop_unused_modules(graph, [str(node.target) for node in masks])


def _threshold(
    graph: MaseGraph, nodes: Sequence[fx.Node], config: PruneActivation, args: PruneArgs
) -> float:
    """Return the magnitude that the chosen share of all layers' inputs does not exceed."""
    sources = {node.all_input_nodes[0] for node in nodes}
    magnitudes: dict[fx.Node, Tensor] = {}

    def record(node: fx.Node, result: Any) -> None:
        if node in sources:
            magnitudes[node] = result.detach().abs().flatten().float()

    propagate(graph, bind_inputs(graph, args.dummy_in, "prune"), record, real=True)
    values = torch.cat([magnitudes[node.all_input_nodes[0]] for node in nodes])
    count = round(config.sparsity * values.numel())
    return float(values.kthvalue(count).values) if count else -1.0
