"""Replace a call of fused attention by its parts."""

from __future__ import annotations

import math

import torch
from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.node_arguments import named_arguments
from chop.nn.quantized.functional import is_quantized_function
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import ensure_meta, refresh
from chop.passes.rewrite.node_patterns import op_name
from chop.passes.rewrite.propagate import device_of
from chop.passes.rewrite.surgery import add_constant, bypass

ATTENTION = "scaled_dot_product_attention"


@graph_pass("decompose_attention_transform_pass", rewrites=True, needs=("common",))
def decompose_attention_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Replace `scaled_dot_product_attention` by matmul, scale, mask, softmax, matmul.

    For targets that have these ops and not the call, such as hardware. Run it before quantising, so
    that each op gets its own formats. A boolean mask becomes `where` with minus infinity, a float
    mask is added. `is_causal` becomes such a mask, a constant of the captured length; heads that
    share keys are the rows of one product. Calls with dropout, and quantised ones, stay unchanged;
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
    """Return the reason why a call stays unchanged; empty if there is none."""
    if is_quantized_function(node.target):
        return "it is quantised as one call"
    arguments = dict(named_arguments(node))
    if arguments.get("dropout_p", 0) not in (0, False):
        return f"dropout_p = {arguments['dropout_p']}"
    if arguments.get("enable_gqa") and len(_shape(arguments["query"])) != 4:
        return f"grouped heads of shape {_shape(arguments['query'])}"
    return ""


def _shape(node: fx.Node) -> list[int]:
    shape: list[int] = mase_meta(node).common["results"]["data_out_0"]["shape"]
    return shape


def _write_out(graph: MaseGraph, node: fx.Node) -> None:
    """Replace the call by its parts."""
    arguments = dict(named_arguments(node))
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    groups = _shape(key)[1] if arguments.get("enable_gqa") else None
    scale = arguments.get("scale")
    scale = 1 / math.sqrt(_shape(query)[-1]) if scale is None else float(scale)
    call = graph.fx_graph.call_function
    with graph.fx_graph.inserting_before(node):
        turned = graph.fx_graph.call_method("transpose", (key, -1, -2))
        scores = _product(graph, query, turned, [*_shape(query), _shape(key)[-2]], groups)
        scores = call(torch.mul, (scores, scale))
        mask = arguments.get("attn_mask")
        if arguments.get("is_causal"):
            lengths, device = (_shape(query)[-2], _shape(key)[-2]), device_of(graph.model)
            visible = torch.ones(lengths, dtype=torch.bool, device=device).tril()
            mask = graph.fx_graph.get_attr(add_constant(graph, f"{node.name}_seen", visible))
            ensure_meta(mask)
            scores = call(torch.where, (mask, scores, -math.inf))
        elif isinstance(mask, fx.Node):
            is_bool = mase_meta(mask).common["results"]["data_out_0"]["torch_dtype"] is torch.bool
            operands = (mask, scores, -math.inf) if is_bool else (scores, mask)
            scores = call(torch.where if is_bool else torch.add, operands)
        weights = call(torch.softmax, (scores,), {"dim": -1})
        sizes = [*_shape(query)[:-1], _shape(key)[-2], _shape(value)[-1]]
        output = _product(graph, weights, value, sizes, groups)
    bypass(node, output)


def _product(
    graph: MaseGraph, left: fx.Node, right: fx.Node, sizes: list[int], groups: int | None
) -> fx.Node:
    """Return left @ right with `sizes` (batch, heads, rows, inner, columns).

    Heads that share one of `groups` matrices `right` are the rows of one product.
    """
    if groups is None or groups == sizes[1]:
        return graph.fx_graph.call_function(torch.matmul, (left, right))
    _, heads, rows, inner, columns = sizes
    merged = graph.fx_graph.call_method(
        "reshape", (left, -1, groups, heads // groups * rows, inner)
    )
    product = graph.fx_graph.call_function(torch.matmul, (merged, right))
    return graph.fx_graph.call_method("reshape", (product, -1, heads, rows, columns))
