"""Prune weights and activations, and make pruning permanent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.prune.activation_masks import prune_activations, remove_activation_masks
from chop.passes.prune.calibrated import prune_by_inputs
from chop.passes.prune.importance import METHODS
from chop.passes.prune.prunable_layers import mask_of, prunable_layers, remove_mask
from chop.passes.prune.pruning_config import STRUCTURES, PruneArgs
from chop.passes.prune.sparsity import annotate_sparsity, measure
from chop.passes.prune.structure import prune_structures
from chop.passes.prune.weight_masks import prune_weights
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_layers import lift_products
from chop.passes.rewrite.surgery import replace_modules


@graph_pass("prune_transform_pass", PruneArgs, rewrites=True, preserves=False)
def prune_transform_pass(graph: MaseGraph, args: PruneArgs) -> PassResult:
    """Set the least important weights, and inputs of layers, to zero, or remove whole channels.

        prune_transform_pass(mg, {
            "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
            "activation": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
        })

    Linear and convolution layers get masked weights: they train, quantise, copy and save with their
    zeros. Pruned weights stay pruned and count. Methods "wanda" and "sparsegpt" calibrate on
    `batches` and prune layers in the order of the graph, each on the outputs of those before it.
    "sparsegpt" also changes the remaining weights, which are then parameters of the graph. With
    granularity "channel" or "head", rows and columns are removed from all the weights that share
    them, and the graph's constants follow; the parameters are new, so create the optimiser
    afterwards. The products that GPT-2 and its relatives write (`Conv1D`) first become linear
    layers. Activations are pruned by nodes before the layers.

    `info["sparsity"]` is the measured share of zeros over all such weights, `info["layers"]` by
    path, `info["activations"]` by node on the example inputs. Removing channels adds
    `info["structure"]`, with the parameters before and after.
    """
    lift_products(graph)
    structure: dict[str, Any] = {}
    if args.weight is not None and args.weight.granularity in STRUCTURES:
        structure = {"structure": prune_structures(graph, args.weight, args)}
    elif args.weight is not None:
        by_inputs = METHODS[args.weight.method].needs_inputs
        (prune_by_inputs if by_inputs else prune_weights)(graph, args.weight, args)
    if args.activation is not None:
        prune_activations(graph, args.activation, args)
    refresh(graph)
    info = measure(graph, args.dummy_in)
    annotate_sparsity(graph, info)
    return graph, {**info, **structure}


@dataclass(frozen=True)
class PruneDetachArgs:
    """Settings of `prune_detach_hook_transform_pass`.

    `activation`: also remove the nodes that prune activations, which changes the output.
    """

    activation: bool = False


@graph_pass("prune_detach_hook_transform_pass", PruneDetachArgs, rewrites=True)
def prune_detach_hook_transform_pass(graph: MaseGraph, args: PruneDetachArgs) -> PassResult:
    """Write the zeros into the weights and remove the masks; layers get their classes back.

    From then on training may change the zeros. An unpruned graph stays unchanged.
    `info["detached"]` has the paths of the layers.
    """
    masked = {p: m for p, m in prunable_layers(graph).items() if mask_of(m) is not None}
    replace_modules(graph, masked, lambda _, layer: remove_mask(layer))
    removed = remove_activation_masks(graph) if args.activation else []
    refresh(graph)
    annotate_sparsity(graph, measure(graph))
    return graph, {"detached": [*masked, *removed]}
