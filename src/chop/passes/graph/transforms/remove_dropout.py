"""Take dropout out of a graph."""

from __future__ import annotations

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import find_op
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.graph.transforms.eliminate_dead_code import erase_dead_nodes
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import bypass, drop_unused_modules

RATE = "dropout_p"
"""What torch's functions call their dropout rate."""


@graph_pass("remove_dropout_transform_pass", rewrites=True)
def remove_dropout_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Remove every dropout node, module or function; `info["removed"]` names them.

    Functions with dropout inside (attention) get the rate 0; `info["silenced"]` names those.
    The output in evaluation mode stays the same. Does nothing where there is no dropout.
    """
    found = [n for n in graph.fx_graph.nodes if _is_dropout(graph, n)]
    for node in found:
        bypass(node, node.all_input_nodes[0])
    silenced = [n for n in graph.fx_graph.nodes if _silence(n)]
    if not found and not silenced:
        return graph, {"removed": [], "silenced": []}
    removed = [*found, *erase_dead_nodes(graph)]  # what gave the rates has no users now
    drop_unused_modules(graph, [str(n.target) for n in removed if n.op == "call_module"])
    refresh(graph)
    return graph, {"removed": [n.name for n in found], "silenced": [n.name for n in silenced]}


def _silence(node: fx.Node) -> bool:
    """Set the dropout rate of a function that takes one to 0; whether it had another."""
    if node.op != "call_function":
        return False
    names = [name for name, _ in named_arguments(node)]
    rates = [(i, a) for i, (n, a) in enumerate(named_arguments(node)) if n == RATE and a != 0.0]
    if not rates:
        return False
    if RATE in node.kwargs:
        node.update_kwarg(RATE, 0.0)
    else:
        node.update_arg(names.index(RATE), 0.0)
    return True


def _is_dropout(graph: MaseGraph, node: fx.Node) -> bool:
    op = find_op(node, graph.custom_ops)
    return op is not None and op.is_dropout
