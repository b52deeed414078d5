"""Prune weights and activations."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.prune.activation_masks import prune_activations
from chop.passes.prune.calibrated import prune_by_inputs
from chop.passes.prune.importance import METHODS
from chop.passes.prune.pruning_config import STRUCTURES, PruneArgs
from chop.passes.prune.sparsity import annotate_sparsity, measure
from chop.passes.prune.structure import prune_structures
from chop.passes.prune.weight_masks import prune_weights
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_products import lift_products


@graph_pass("prune_transform_pass", PruneArgs, rewrites=True, preserves=False)
def prune_transform_pass(graph: MaseGraph, args: PruneArgs) -> PassResult:
    """Set the least important weights, and inputs of layers, to zero, or remove whole channels.

        prune_transform_pass(mg, {
            "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
            "activation": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
        })

    Linear and convolution layers become ones whose weights are masked: they train, quantise,
    copy and save with their zeros. What is pruned already stays so and counts. Methods "wanda" and
    "sparsegpt" calibrate on `batches` and take layers in the order in which they run, each on the
    outputs of those before it; "sparsegpt" also changes the weights that stay, which are then
    parameters of the graph's own. With granularity
    "channel" or "head", rows and columns are removed from all the weights that share them, and
    the graph's constants follow; the parameters are new ones, so make the optimiser afterwards.
    The products that GPT-2 and its kin write (`Conv1D`) are linear layers first.
    Activations are pruned by nodes before the layers.

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
