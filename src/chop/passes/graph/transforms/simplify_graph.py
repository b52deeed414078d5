"""Remove nodes that need not run: dead code, repeated expressions, constants and dropout."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import is_plain, named_arguments
from chop.ir.ops import find_op, node_module
from chop.ir.trace.effects import is_deterministic, is_mutating, written_nodes
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import refresh, replace_by_constant
from chop.passes.rewrite.surgery import bypass, drop_unused_modules

ENDS = ("placeholder", "output")


@graph_pass("eliminate_dead_code_transform_pass", rewrites=True)
def eliminate_dead_code_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Erase nodes without users, and the modules only they called; `info["removed"]` names them.

    Inputs stay, and so does every node that writes to a tensor (in-place methods, item assignment,
    `out=`, batch statistics in training) or whose op is unknown.
    """
    removed = erase_dead_nodes(graph)
    if removed:
        drop_modules_of(graph, removed)
        refresh(graph)
    return graph, {"removed": [node.name for node in removed]}


def erase_dead_nodes(graph: MaseGraph) -> list[fx.Node]:
    """Erase unused nodes from the end backwards, so that chains go in one sweep; return them."""
    removed = []
    for node in reversed(list(graph.fx_graph.nodes)):
        unused = not node.users and node.op not in ENDS
        if unused and not is_mutating(node, find_op(node, graph.custom_ops)):
            graph.fx_graph.erase_node(node)
            removed.append(node)
    return removed


def drop_modules_of(graph: MaseGraph, removed: Iterable[fx.Node]) -> None:
    """Delete the modules that only the `removed` nodes called."""
    drop_unused_modules(graph, [str(n.target) for n in removed if n.op == "call_module"])


@graph_pass("eliminate_common_subexpressions_transform_pass", rewrites=True)
def eliminate_common_subexpressions_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Merge equal nodes with equal operands; `info["merged"]` maps removed nodes to kept ones.

    Random nodes, nodes that write to a tensor or whose result is written to, and nodes of unknown
    ops are never merged; nor are two nodes with a write between them.
    """
    written = written_nodes(graph.fx_graph, graph.custom_ops)
    first: dict[Hashable, fx.Node] = {}
    merged: dict[fx.Node, fx.Node] = {}
    writes = 0  # part of the key: an expression before a write is not the same after it
    for node in list(graph.fx_graph.nodes):
        op = find_op(node, graph.custom_ops)
        if node.op not in ENDS and is_mutating(node, op):
            writes += 1
        if node.op in ENDS or node in written or not is_deterministic(node, op):
            continue
        target = id(node_module(node)) if node.op == "call_module" else node.target
        key = (writes, node.op, target, _frozen(node.args), _frozen(node.kwargs))
        if key in first:
            merged[node] = first[key]
            bypass(node, first[key])
        else:
            first[key] = node
    if merged:
        drop_modules_of(graph, merged)
        refresh(graph)
    return graph, {"merged": {removed.name: other.name for removed, other in merged.items()}}


def _frozen(argument: Any) -> Hashable:
    """Return a key that is equal for equal arguments and different for 1, 1.0 and True."""
    if isinstance(argument, dict):
        return ("dict", *((k, _frozen(v)) for k, v in argument.items()))
    if isinstance(argument, tuple | list):
        return (type(argument).__name__, *map(_frozen, argument))
    if isinstance(argument, slice):
        return ("slice", *map(_frozen, (argument.start, argument.stop, argument.step)))
    if isinstance(argument, fx.Node):
        return argument
    return (type(argument).__name__, repr(argument))


@dataclass(frozen=True)
class FoldConstantsArgs:
    """Settings of `fold_constants_transform_pass`.

    `max_elements`: size of the largest tensor to fold; None folds every one.
    """

    max_elements: int | None = None


@graph_pass("fold_constants_transform_pass", FoldConstantsArgs, rewrites=True)
def fold_constants_transform_pass(graph: MaseGraph, args: FoldConstantsArgs) -> PassResult:
    """Replace nodes that depend on no input by their values: tensors as buffers, numbers in place.

    `info["folded"]` names the replaced nodes. Nodes that depend on a parameter stay, so that
    training still reaches it; so does anything random, written to, or of an unknown op.
    """
    values = constant_values(graph)
    folded = [
        node.name
        for node, value in values.items()
        if node.op != "get_attr" and any(user not in values for user in node.users)
        if _fold(graph, node, value, args)
    ]
    if folded:
        drop_modules_of(graph, erase_dead_nodes(graph))
        refresh(graph)
    return graph, {"folded": folded}


def constant_values(graph: MaseGraph) -> dict[fx.Node, Any]:
    """Return the value of every node that depends on no input and no parameter, in order."""
    written = written_nodes(graph.fx_graph, graph.custom_ops)
    interpreter = fx.Interpreter(graph.model)
    values: dict[fx.Node, Any] = interpreter.env
    constants: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph.fx_graph.nodes:
            if node not in written and _is_constant(graph, node, constants):
                constants[node] = values[node] = interpreter.run_node(node)
    return constants


def _is_constant(graph: MaseGraph, node: fx.Node, constants: dict[fx.Node, Any]) -> bool:
    if node.op in ENDS:
        return False
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(graph.model)
        return isinstance(value, Tensor) and not value.requires_grad
    if node.op == "call_module" and any(True for _ in node_module(node).parameters()):
        return False
    op = find_op(node, graph.custom_ops)
    if op is None or op.is_stateful or not is_deterministic(node, op):
        return False
    return all(n in constants for n in node.all_input_nodes)


def _fold(graph: MaseGraph, node: fx.Node, value: Any, args: FoldConstantsArgs) -> bool:
    if isinstance(value, Tensor):
        if args.max_elements is not None and value.numel() > args.max_elements:
            return False
        replace_by_constant(graph, node, f"folded_{node.name}", value)
        return True
    if not is_plain(value):
        return False
    for user in list(node.users):
        user.args = fx.node.map_arg(user.args, lambda n: value if n is node else n)
        user.kwargs = fx.node.map_arg(user.kwargs, lambda n: value if n is node else n)
    return True


RATE = "dropout_p"
"""Name of the dropout rate in torch's functions."""


@graph_pass("remove_dropout_transform_pass", rewrites=True)
def remove_dropout_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Remove every dropout node, module or function; `info["removed"]` names them.

    Functions with dropout inside (attention) get the rate 0; `info["silenced"]` names those. The
    output in evaluation mode stays the same. A graph without dropout stays unchanged.
    """
    ops = {node: find_op(node, graph.custom_ops) for node in graph.fx_graph.nodes}
    dropouts = [node for node, op in ops.items() if op is not None and op.is_dropout]
    for node in dropouts:
        bypass(node, node.all_input_nodes[0])
    silenced = [n for n in graph.fx_graph.nodes if _silence(n)]
    if dropouts or silenced:
        # the nodes that computed the rates have no users now
        drop_modules_of(graph, [*dropouts, *erase_dead_nodes(graph)])
        refresh(graph)
    return graph, {"removed": [n.name for n in dropouts], "silenced": [n.name for n in silenced]}


def _silence(node: fx.Node) -> bool:
    """Set the dropout rate of a function to 0; return True if it had another rate."""
    arguments = named_arguments(node) if node.op == "call_function" else ()
    names = [name for name, _ in arguments]
    if not any(name == RATE and value != 0.0 for name, value in arguments):
        return False
    if RATE in node.kwargs:
        node.update_kwarg(RATE, 0.0)
    else:
        node.update_arg(names.index(RATE), 0.0)
    return True
