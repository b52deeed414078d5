"""Small functions on nodes, under the import path of older programs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import node_module

__all__ = [
    "deepcopy_mase_graph",
    "get_mase_op",
    "get_mase_type",
    "get_node_actual_target",
    "get_parent_name",
]


def deepcopy_mase_graph(graph: MaseGraph) -> MaseGraph:
    """Return a graph that shares nothing with `graph`: model, nodes and metadata are copies."""
    return copy.deepcopy(graph)


def get_mase_op(node: fx.Node) -> str:
    """Return the MASE op of an annotated node, such as "linear"."""
    return str(mase_meta(node)["common"]["mase_op"])


def get_mase_type(node: fx.Node) -> str:
    """Return the MASE type of an annotated node, one of the seven."""
    return str(mase_meta(node)["common"]["mase_type"])


def get_node_actual_target(node: fx.Node) -> Any:
    """Return the module, function or tensor method that a node calls; else its target."""
    if node.op == "call_module":
        return node_module(node)
    if node.op == "call_method":
        return getattr(torch.Tensor, str(node.target))
    return node.target


def get_parent_name(target: str) -> tuple[str, str]:
    """Return the path of the module that owns `target`, and the name of `target` there.

    >>> get_parent_name("encoder.layer.0")
    ('encoder.layer', '0')
    """
    parent, _, name = target.rpartition(".")
    return parent, name
