"""Compute once, now, what does not depend on the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import is_plain
from chop.ir.ops import find_op, node_module
from chop.ir.trace.effects import is_deterministic, written_nodes
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.eliminate_dead_code import erase_dead_nodes
from chop.passes.rewrite.annotate import refresh, replace_by_constant
from chop.passes.rewrite.surgery import drop_unused_modules


@dataclass(frozen=True)
class FoldConstantsArgs:
    """`max_elements`: leave larger tensors to be computed; None folds every one."""

    max_elements: int | None = None


@graph_pass("fold_constants_transform_pass", FoldConstantsArgs, rewrites=True)
def fold_constants_transform_pass(graph: MaseGraph, args: FoldConstantsArgs) -> PassResult:
    """Replace what depends on no input by its value: tensors as buffers, numbers in place.

    `info["folded"]` names the nodes replaced. What depends on a parameter is left, so that
    training still reaches it; so is anything random, written to, or of an unknown op.
    """
    values = constant_values(graph)
    folded = [
        node.name
        for node in list(values)
        if _is_frontier(node, values) and _fold(graph, node, values[node], args)
    ]
    removed = erase_dead_nodes(graph) if folded else []
    drop_unused_modules(graph, [str(n.target) for n in removed if n.op == "call_module"])
    if folded:
        refresh(graph)
    return graph, {"folded": folded}


def constant_values(graph: MaseGraph) -> dict[fx.Node, Any]:
    """The value of every node that depends on no input and no parameter, in order."""
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
    if node.op in ("placeholder", "output"):
        return False
    if node.op == "get_attr":
        return _is_fixed_tensor(graph, str(node.target))
    if node.op == "call_module" and any(True for _ in node_module(node).parameters()):
        return False
    op = find_op(node, graph.custom_ops)
    if op is None or op.is_stateful or not is_deterministic(node, op):
        return False
    return all(n in constants for n in node.all_input_nodes)


def _is_fixed_tensor(graph: MaseGraph, target: str) -> bool:
    parent, _, name = target.rpartition(".")
    value = getattr(graph.model.get_submodule(parent), name)
    return isinstance(value, Tensor) and not value.requires_grad


def _is_frontier(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    return node.op != "get_attr" and any(user not in values for user in node.users)


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
