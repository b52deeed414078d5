"""Erase nodes whose result nobody uses."""

from __future__ import annotations

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op
from chop.ir.trace.effects import is_mutating
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import drop_unused_modules

KEPT = ("placeholder", "output")


@graph_pass("eliminate_dead_code_transform_pass", rewrites=True)
def eliminate_dead_code_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Erase nodes without users, and the modules only they called; `info["removed"]` names them.

    Inputs stay, and so does every node that writes to a tensor (in-place methods, item
    assignment, `out=`, batch statistics in training) or whose op is not known.
    """
    removed = erase_dead_nodes(graph)
    drop_unused_modules(graph, [str(n.target) for n in removed if n.op == "call_module"])
    if removed:
        refresh(graph)
    return graph, {"removed": [node.name for node in removed]}


def erase_dead_nodes(graph: MaseGraph) -> list[fx.Node]:
    """Erase unused nodes from the end backwards, so that chains go in one sweep."""
    removed = []
    for node in reversed(list(graph.fx_graph.nodes)):
        unused = not node.users and node.op not in KEPT
        if unused and not is_mutating(node, find_op(node, graph.custom_ops)):
            graph.fx_graph.erase_node(node)
            removed.append(node)
    return removed
