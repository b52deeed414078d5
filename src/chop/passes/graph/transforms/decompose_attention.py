"""One call of fused attention, written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.node_arguments import named_arguments
from chop.nn.quantized.function import is_quantized_function
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import ensure_meta, refresh
from chop.passes.rewrite.node_patterns import op_name
from chop.passes.rewrite.propagate import device_of
from chop.passes.rewrite.surgery import add_constant

ATTENTION = "scaled_dot_product_attention"


@graph_pass("decompose_attention_transform_pass", rewrites=True, needs=("common",))
def decompose_attention_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Replace `scaled_dot_product_attention` by matmul, scale, mask, softmax, matmul.

    For what has these and not the call, as hardware; before quantising, so that each gets formats
    of its own. A mask of truth values becomes `where` with minus infinity, one of numbers is added.
    `is_causal` becomes such a mask, a constant of the captured length; heads that share keys are
    the rows of one product. Calls with dropout, and quantised ones, stay as they are;
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
    if given.get("dropout_p", 0) not in (0, False):
        return f"dropout_p = {given['dropout_p']}"
    if given.get("enable_gqa") and len(_shape(given["query"])) != 4:
        return f"grouped heads of shape {_shape(given['query'])}"
    return ""


def _shape(node: fx.Node) -> list[int]:
    found: list[int] = mase_meta(node).common["results"]["data_out_0"]["shape"]
    return found


def _write_out(graph: MaseGraph, node: fx.Node) -> None:
    """Put the parts of the call in its place."""
    given = dict(named_arguments(node))
    query, key, value = (given[name] for name in ("query", "key", "value"))
    groups = _shape(key)[1] if given.get("enable_gqa") else None
    with graph.fx_graph.inserting_before(node):
        turned = graph.fx_graph.call_method("transpose", (key, -1, -2))
        scores = _product(graph, query, turned, [*_shape(query), _shape(key)[-2]], groups)
        scaled = graph.fx_graph.call_function(torch.mul, (scores, _scale(query, given)))
        if given.get("is_causal"):
            seen = _causal(graph, node, (_shape(query)[-2], _shape(key)[-2]))
            masked = graph.fx_graph.call_function(torch.where, (seen, scaled, -math.inf))
        else:
            masked = _masked(graph, scaled, given.get("attn_mask"))
        weights = graph.fx_graph.call_function(torch.softmax, (masked,), {"dim": -1})
        sizes = [*_shape(query)[:-1], _shape(key)[-2], _shape(value)[-1]]
        output = _product(graph, weights, value, sizes, groups)
    node.replace_all_uses_with(output)
    graph.fx_graph.erase_node(node)


def _causal(graph: MaseGraph, node: fx.Node, sizes: tuple[int, int]) -> fx.Node:
    """A constant: each query sees the keys up to its own place."""
    seen = torch.ones(sizes, dtype=torch.bool, device=device_of(graph.model)).tril()
    constant = graph.fx_graph.get_attr(add_constant(graph, f"{node.name}_seen", seen))
    ensure_meta(constant)
    return constant


def _product(
    graph: MaseGraph, left: fx.Node, right: fx.Node, sizes: list[int], groups: int | None
) -> fx.Node:
    """left @ right with `sizes` (batch, heads, rows, inner, columns).

    Where heads share one of `groups` matrices `right`, the rows of those that do are one matrix.
    """
    if groups is None or groups == sizes[1]:
        return graph.fx_graph.call_function(torch.matmul, (left, right))
    _, heads, rows, inner, columns = sizes
    merged = graph.fx_graph.call_method(
        "reshape", (left, -1, groups, heads // groups * rows, inner)
    )
    product = graph.fx_graph.call_function(torch.matmul, (merged, right))
    return graph.fx_graph.call_method("reshape", (product, -1, heads, rows, columns))


def _scale(query: fx.Node, given: Mapping[str, Any]) -> float:
    scale = given.get("scale")
    return 1 / math.sqrt(_shape(query)[-1]) if scale is None else float(scale)


def _masked(graph: MaseGraph, scores: fx.Node, mask: Any) -> fx.Node:
    if not isinstance(mask, fx.Node):
        return scores
    if mase_meta(mask).common["results"]["data_out_0"]["torch_dtype"] is torch.bool:
        return graph.fx_graph.call_function(torch.where, (mask, scores, -math.inf))
    return graph.fx_graph.call_function(torch.add, (scores, mask))
