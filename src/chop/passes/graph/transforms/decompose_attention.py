"""One call of fused attention, written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from chop.ir.arguments import named_arguments
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.nn.quantized.function import is_quantized_function
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.graph.annotate import refresh
from chop.passes.graph.transforms.patterns import op_name

ATTENTION = "scaled_dot_product_attention"


@graph_pass("decompose_attention_transform_pass", rewrites=True, needs=("common",))
def decompose_attention_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Replace `scaled_dot_product_attention` by matmul, scale, mask, softmax, matmul.

    For what has these and not the call, as hardware; before quantising, so that each gets formats
    of its own. A mask of truth values becomes `where` with minus infinity, one of numbers is added.
    Calls with dropout, `is_causal` or grouped heads, and quantised ones, stay as they are;
    `info["sites"]` has a record for each call: decomposed, or the reason why not. The output stays
    equal up to rounding.
    """
    sites = [n for n in graph.fx_graph.nodes if op_name(graph, n) == ATTENTION]
    records = []
    for node in sites:
        reason = _obstacle(node)
        records.append({"name": node.name, "decomposed": not reason, "reason": reason})
        if not reason:
            _write_out(graph, node)
    decomposed = sum(not record["reason"] for record in records)
    if decomposed:
        refresh(graph)
    return graph, {"sites": records, "decomposed": decomposed}


def _obstacle(node: fx.Node) -> str:
    """Why a call is left alone; nothing where it is not."""
    if is_quantized_function(node.target):
        return "it is quantised as one call"
    given = dict(named_arguments(node))
    for name in ("dropout_p", "is_causal", "enable_gqa"):
        if given.get(name, 0) not in (0, False):
            return f"{name} = {given[name]}"
    return ""


def _write_out(graph: MaseGraph, node: fx.Node) -> None:
    """Put the parts of the call in its place."""
    given = dict(named_arguments(node))
    query, key, value = (given[name] for name in ("query", "key", "value"))
    with graph.fx_graph.inserting_before(node):
        turned = graph.fx_graph.call_method("transpose", (key, -1, -2))
        scores = graph.fx_graph.call_function(torch.matmul, (query, turned))
        scaled = graph.fx_graph.call_function(torch.mul, (scores, _scale(query, given)))
        masked = _masked(graph, scaled, given.get("attn_mask"))
        weights = graph.fx_graph.call_function(torch.softmax, (masked,), {"dim": -1})
        output = graph.fx_graph.call_function(torch.matmul, (weights, value))
    node.replace_all_uses_with(output)
    graph.fx_graph.erase_node(node)


def _scale(query: fx.Node, given: Mapping[str, Any]) -> float:
    scale = given.get("scale")
    size = mase_meta(query).common["results"]["data_out_0"]["shape"][-1]
    return 1 / math.sqrt(size) if scale is None else float(scale)


def _masked(graph: MaseGraph, scores: fx.Node, mask: Any) -> fx.Node:
    if not isinstance(mask, fx.Node):
        return scores
    if mase_meta(mask).common["results"]["data_out_0"]["torch_dtype"] is torch.bool:
        return graph.fx_graph.call_function(torch.where, (mask, scores, -math.inf))
    return graph.fx_graph.call_function(torch.add, (scores, mask))
