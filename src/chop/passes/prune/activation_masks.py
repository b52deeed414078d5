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
    """The nodes that prune activations."""
    calls = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    found = ((n, node_module(n)) for n in calls)
    return {n: module for n, module in found if isinstance(module, ActivationMask)}


def prune_activations(graph: MaseGraph, config: PruneActivation, args: PruneArgs) -> list[str]:
    """Put a mask before each chosen layer, in place of one that is there; the layers' paths."""
    nodes = prunable_nodes(graph)
    paths = list(dict.fromkeys(str(node.target) for node in nodes))
    chosen = select(config.target_modules, paths, "prune.activation.target_modules")
    nodes = [node for node in nodes if str(node.target) in chosen]
    for node in nodes:
        _remove_before(graph, node)
    threshold = _threshold(graph, nodes, config, args) if config.scope == "global" else None
    for node in nodes:
        path = f"{node.target}{SUFFIX}"
        seed = args.seed + zlib.crc32(path.encode())
        mask = ActivationMask(config.sparsity, config.method, seed=seed, threshold=threshold)
        mask.to(next(node_module(node).parameters()).device)
        _insert_before(graph, node, path, mask)
    return chosen


def remove_activation_masks(graph: MaseGraph) -> list[str]:
    """Take every activation mask out of the graph; the paths they had."""
    masks = activation_masks(graph)
    for node in masks:
        bypass(node, node.all_input_nodes[0])
    return drop_unused_modules(graph, [str(node.target) for node in masks])


def _remove_before(graph: MaseGraph, node: fx.Node) -> None:
    source = node.all_input_nodes[0]
    if source in activation_masks(graph):
        bypass(source, source.all_input_nodes[0])
        drop_unused_modules(graph, [str(source.target)])


def _insert_before(graph: MaseGraph, node: fx.Node, path: str, mask: ActivationMask) -> None:
    set_module(graph, path, mask)
    source = node.all_input_nodes[0]
    with graph.fx_graph.inserting_before(node):
        new = graph.fx_graph.call_module(path, (source,))
    node.replace_input_with(source, new)


def _threshold(
    graph: MaseGraph, nodes: Sequence[fx.Node], config: PruneActivation, args: PruneArgs
) -> float:
    """The magnitude that the chosen share of all layers' inputs does not exceed."""
    sources = {node.all_input_nodes[0] for node in nodes}
    seen: dict[fx.Node, Tensor] = {}

    def record(node: fx.Node, result: Any) -> None:
        if node in sources:
            seen[node] = result.detach().abs().flatten().float()

    propagate(graph, bind_inputs(graph, args.dummy_in, "prune"), record, real=True)
    values = torch.cat([seen[node.all_input_nodes[0]] for node in nodes])
    count = round(config.sparsity * values.numel())
    return float(values.kthvalue(count).values) if count else -1.0
