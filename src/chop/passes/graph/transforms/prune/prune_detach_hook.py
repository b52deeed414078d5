"""Make pruning permanent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.prune.activation_masks import remove_activation_masks
from chop.passes.prune.prunable_layers import mask_of, prunable_layers, remove_mask
from chop.passes.prune.sparsity import annotate_sparsity, measure
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import set_module


@dataclass(frozen=True)
class PruneDetachArgs:
    """`activation`: also take out the nodes that prune activations, which changes the output."""

    activation: bool = False


@graph_pass("prune_detach_hook_transform_pass", PruneDetachArgs, rewrites=True)
def prune_detach_hook_transform_pass(graph: MaseGraph, args: PruneDetachArgs) -> PassResult:
    """Leave the zeros in the weights and remove the masks; layers have their classes again.

    From then on training may move the zeros. Does nothing to a graph that is not pruned.
    `info["detached"]` has the paths of the layers.
    """
    made: dict[int, nn.Module] = {}
    masked = {p: m for p, m in prunable_layers(graph).items() if mask_of(m) is not None}
    for path, layer in masked.items():
        if id(layer) not in made:
            made[id(layer)] = remove_mask(layer)
        set_module(graph, path, made[id(layer)])
    removed = remove_activation_masks(graph) if args.activation else []
    refresh(graph)
    annotate_sparsity(graph, measure(graph))
    return graph, {"detached": [*masked, *removed]}
