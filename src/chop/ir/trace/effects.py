"""Side effects of nodes: writing to a tensor, drawing random numbers.

Every answer is conservative: a node with an unknown op may do anything.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn

from chop.ir.node_arguments import named_arguments
from chop.ir.ops import Op, find_op, node_module
from chop.ir.trace.torch_names import SIDE_EFFECTS, names_mutation

IN_PLACE_FUNCTIONS = {operator.delitem, setattr, delattr}
IN_PLACE_METHODS = {"__setitem__", "__delitem__", "__setattr__"} | {
    f"__i{name}__"
    for name in (
        *("add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or"),
        *("pow", "rshift", "sub", "truediv", "xor"),
    )
}
"""Methods that write to their first argument without a trailing underscore in their name."""

GRAD_MODE_FUNCTIONS = {torch._C._set_grad_enabled}
"""Functions that change how the nodes after them run."""

_NOT_CALLS = ("placeholder", "get_attr", "output")


def is_mutation(node: fx.Node, module_of: Callable[[str], nn.Module] | None = None) -> bool:
    """Return True if running `node` changes a tensor in place, so that it must not be removed."""
    if node.op == "call_method":
        return names_mutation(str(node.target))
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        has_target = node.kwargs.get("inplace") is True or node.kwargs.get("out") is not None
        return has_target or node.target in SIDE_EFFECTS or names_mutation(name)
    if node.op == "call_module":
        owner = node.graph.owning_module
        find = module_of or (owner.get_submodule if owner is not None else None)
        module = find(str(node.target)) if find is not None else None
        return getattr(module, "inplace", False) or getattr(module, "has_side_effect", False)
    return False


RANDOM_DRAWS = (torch.rand, torch.randn, torch.randint, torch.rand_like, torch.randn_like)


def is_random_draw(node: fx.Node) -> bool:
    """Return True if `node` creates a tensor of random numbers."""
    return node.op == "call_function" and node.target in RANDOM_DRAWS


def is_in_place(node: fx.Node) -> bool:
    """Return True if `node` writes to one of its operands."""
    if is_mutation(node):
        return True
    if node.op == "call_method":
        return node.target in IN_PLACE_METHODS
    if node.op != "call_function":
        return False
    arguments = dict(named_arguments(node))  # F.relu(x, True) and torch.add(x, y, out=z)
    has_target = bool(arguments.get("inplace", False)) or arguments.get("out") is not None
    return has_target or node.target in IN_PLACE_FUNCTIONS


def is_mutating(node: fx.Node, op: Op | None) -> bool:
    """Return True if `node` may write to an operand or to its module's buffers."""
    if op is None or node.target in GRAD_MODE_FUNCTIONS or is_in_place(node):
        return True
    if not op.is_stateful:
        return False
    if node.op == "call_module":
        return node_module(node).training
    return dict(named_arguments(node)).get("training", False) is not False


def is_deterministic(node: fx.Node, op: Op | None) -> bool:
    """Return True if `node` has equal results for equal operands and no side effects."""
    return op is not None and not op.is_random and not is_mutating(node, op)


def written_nodes(graph: fx.Graph, custom_ops: Mapping[str, Any] | None = None) -> set[fx.Node]:
    """Return the nodes whose result some node may write to, directly or through a view."""
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
    """Return True if the result of `node` may share the storage of an operand."""
    return node.op not in _NOT_CALLS and (op is None or op.is_view or is_in_place(node))


def _closure(start: Iterable[fx.Node], step: Any) -> set[fx.Node]:
    nodes: set[fx.Node] = set()
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        if node not in nodes:
            nodes.add(node)
            waiting.extend(step(node))
    return nodes
