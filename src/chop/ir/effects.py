"""What a node may do besides giving its result: write to a tensor, draw random numbers.

Every question is answered on the safe side: a node whose op is not known may do anything.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from chop.ir.arguments import named_arguments
from chop.ir.ops import Op, find_op, node_module

_IN_PLACE_NAMES = (
    *("iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior"),
    *("ipow", "irshift", "isub", "itruediv", "ixor", "setitem", "delitem"),
)
IN_PLACE_FUNCTIONS = {getattr(operator, name) for name in _IN_PLACE_NAMES} | {setattr, delattr}
"""Functions that write to their first argument and do not say so in their name."""

GRAD_MODE_FUNCTIONS = {torch._C._set_grad_enabled}
"""Functions that change how the nodes after them run."""

_NOT_CALLS = ("placeholder", "get_attr", "output")


def is_in_place(node: fx.Node) -> bool:
    """Whether `node` writes to one of its operands."""
    if node.op in _NOT_CALLS:
        return False
    if node.op == "call_module":
        return bool(getattr(node_module(node), "inplace", False))
    if node.op == "call_method":
        return _says_in_place(str(node.target).strip("_"), str(node.target))
    if node.target in IN_PLACE_FUNCTIONS:
        return True
    arguments = dict(named_arguments(node))
    named = getattr(node.target, "__name__", "")
    return (
        arguments.get("out") is not None
        or bool(arguments.get("inplace", False))
        or (named.endswith("_") and not named.endswith("__"))
    )


def _says_in_place(bare: str, name: str) -> bool:
    if name.endswith("__"):  # x.__iadd__(y)
        return bare in _IN_PLACE_NAMES
    return name.endswith("_")


def is_mutating(node: fx.Node, op: Op | None) -> bool:
    """Whether `node` writes to an operand, to its module's buffers, or may do so unknown to us."""
    if op is None or node.target in GRAD_MODE_FUNCTIONS or is_in_place(node):
        return True
    if not op.is_stateful:
        return False
    if node.op == "call_module":
        return node_module(node).training
    return dict(named_arguments(node)).get("training", False) is not False


def is_deterministic(node: fx.Node, op: Op | None) -> bool:
    """Whether `node` on equal operands gives equal results and does nothing else."""
    return op is not None and not op.is_random and not is_mutating(node, op)


def written_nodes(graph: fx.Graph, custom_ops: Mapping[str, Any] | None = None) -> set[fx.Node]:
    """Nodes whose result some node may write to, directly or through a view of it."""
    ops = {node: find_op(node, custom_ops) for node in graph.nodes}
    targets = [
        each
        for node in graph.nodes
        if node.op not in _NOT_CALLS and (ops[node] is None or is_in_place(node))
        for each in node.all_input_nodes
    ]
    roots = _closure(targets, lambda n: n.all_input_nodes if _may_alias(n, ops[n]) else ())
    return _closure(roots, lambda n: [u for u in n.users if _may_alias(u, ops[u])])


def _may_alias(node: fx.Node, op: Op | None) -> bool:
    """Whether the result of `node` may share the storage of an operand."""
    if node.op in _NOT_CALLS:
        return False
    return op is None or op.is_view or is_in_place(node)


def _closure(start: Iterable[fx.Node], step: Any) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(step(node))
    return found
