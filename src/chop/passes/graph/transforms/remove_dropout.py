"""Take dropout out of a graph."""

from __future__ import annotations

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.graph.annotate import refresh
from chop.passes.graph.transforms.surgery import bypass, drop_unused_modules


@graph_pass("remove_dropout_transform_pass", rewrites=True)
def remove_dropout_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Remove every dropout node, module or function; `info["removed"]` names them.

    The output in evaluation mode stays the same. Does nothing where there is no dropout.
    """
    found = [n for n in graph.fx_graph.nodes if _is_dropout(graph, n)]
    for node in found:
        bypass(node, node.all_input_nodes[0])
    drop_unused_modules(graph, [str(n.target) for n in found if n.op == "call_module"])
    if found:
        refresh(graph)
    return graph, {"removed": [node.name for node in found]}


def _is_dropout(graph: MaseGraph, node: fx.Node) -> bool:
    op = find_op(node, graph.custom_ops)
    return op is not None and op.is_dropout
