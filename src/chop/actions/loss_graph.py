"""Graph whose only output is the loss, as a split model is trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from chop.actions.batch_columns import LABELS
from chop.errors import DataError
from chop.ir.graph import MaseGraph
from chop.ir.outputs import template_of
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

LOSS = "loss"


def loss_graph(graph: MaseGraph, inputs: Mapping[str, Any]) -> MaseGraph:
    """Return a copy of `graph` that returns the loss alone, annotated for `inputs`.

    A graph without labels gets the loss that `GraphTrainer` computes: cross-entropy of classes,
    or the mean squared error of numbers.
    """
    copied = copy.deepcopy(graph)
    model, nodes = copied.model, copied.fx_graph
    output = next(iter(reversed(nodes.nodes)))
    names = [str(node.target) for node in nodes.find_nodes(op="placeholder")]
    result = output.args[0]
    if LABELS in names:
        loss = result[LOSS] if isinstance(result, Mapping) else _first(result)
    else:
        with nodes.inserting_before(output):
            loss = _loss_of(nodes, _scores(result), inputs[LABELS])
    output.args = (loss,)
    _without_template(model)
    nodes.eliminate_dead_code()
    copied.recompile()
    used = {str(node.target) for node in nodes.find_nodes(op="placeholder")}
    init_metadata_analysis_pass(copied)
    example = {name: value for name, value in inputs.items() if name in used}
    add_common_metadata_analysis_pass(copied, {"dummy_in": example})
    return copied


def _first(result: Any) -> fx.Node:
    node: fx.Node = result[0] if isinstance(result, tuple | list) else result
    return node


def _scores(result: Any) -> fx.Node:
    """Return the node of the scores, as `chop.actions.trainer.scores_of` finds them."""
    if isinstance(result, Mapping):
        node: fx.Node = result["logits"] if "logits" in result else next(iter(result.values()))
        return node
    return _first(result)


def _loss_of(nodes: fx.Graph, scores: fx.Node, labels: Tensor) -> fx.Node:
    """Add the loss of `scores` and an input for the labels."""
    first = next(iter(nodes.nodes))
    with nodes.inserting_before(first):
        target = nodes.placeholder(LABELS)
    if labels.dtype == torch.int64:
        flat = target
        if labels.dim() > 1:
            width = nodes.call_method("size", (scores, -1))
            scores = nodes.call_method("reshape", (scores, -1, width))
            flat = nodes.call_method("reshape", (target, -1))
        return nodes.call_function(F.cross_entropy, (scores, flat))
    if labels.dtype == torch.float32:
        same = nodes.call_method("reshape", (scores, nodes.call_method("size", (target,))))
        return nodes.call_function(F.mse_loss, (same, target))
    raise DataError(f"labels are {labels.dtype}; a loss is known for torch.int64, torch.float32.")


def _without_template(model: fx.GraphModule) -> None:
    """Remove the hook that gives outputs their classes."""
    template = template_of(model)
    hooks = model._forward_hooks
    for key in [key for key, hook in hooks.items() if hook is template]:
        del hooks[key]
