"""Compute once what a graph computes several times."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.ir.trace.effects import is_deterministic, is_mutating, written_nodes
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import bypass, drop_unused_modules

KEPT = ("placeholder", "output")


@graph_pass("eliminate_common_subexpressions_transform_pass", rewrites=True)
def eliminate_common_subexpressions_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Merge nodes that do the same to the same operands; `info["merged"]` maps gone to kept.

    Random nodes, nodes that write to a tensor or whose result is written to, and nodes of unknown
    ops are never merged; nor are two nodes with a write between them.
    """
    merged = _merge_equal(graph)
    targets = [str(n.target) for n in merged if n.op == "call_module"]
    drop_unused_modules(graph, targets)
    if merged:
        refresh(graph)
    return graph, {"merged": {gone.name: kept.name for gone, kept in merged.items()}}


def _merge_equal(graph: MaseGraph) -> dict[fx.Node, fx.Node]:
    written = written_nodes(graph.fx_graph, graph.custom_ops)
    seen: dict[Hashable, fx.Node] = {}
    merged: dict[fx.Node, fx.Node] = {}
    writes = 0  # part of the key: the same expression before and after a write is not the same
    for node in list(graph.fx_graph.nodes):
        op = find_op(node, graph.custom_ops)
        if node.op not in KEPT and is_mutating(node, op):
            writes += 1
        if node.op in KEPT or node in written or not is_deterministic(node, op):
            continue
        key = (writes, _expression(node))
        if key in seen:
            merged[node] = seen[key]
            bypass(node, seen[key])
        else:
            seen[key] = node
    return merged


def _expression(node: fx.Node) -> Hashable:
    target = id(node_module(node)) if node.op == "call_module" else node.target
    return (node.op, target, _frozen(node.args), _frozen(node.kwargs))


def _frozen(argument: Any) -> Hashable:
    """A key equal for equal arguments and different for 1, 1.0 and True."""
    if isinstance(argument, dict):
        return ("dict", *((k, _frozen(v)) for k, v in argument.items()))
    if isinstance(argument, tuple | list):
        return (type(argument).__name__, *map(_frozen, argument))
    if isinstance(argument, slice):
        return ("slice", *map(_frozen, (argument.start, argument.stop, argument.step)))
    if isinstance(argument, fx.Node):
        return argument
    return (type(argument).__name__, repr(argument))
