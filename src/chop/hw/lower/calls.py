"""A node's call on other tensors, for ops that only move numbers."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.meta import mase_meta
from chop.ir.ops import node_module


def called(node: fx.Node, first: Any) -> Any:
    """Run the op of `node` with `first` in place of its first operand.

    Sizes among its other arguments are those that the graph was captured with.
    """
    args, kwargs = fx.map_arg(
        (node.args[1:], dict(node.kwargs)),
        lambda n: mase_meta(n).common["results"]["data_out_0"].get("value"),
    )
    if node.op == "call_module":
        return node_module(node)(first, *args, **kwargs)
    if node.op == "call_method":
        return getattr(first, str(node.target))(*args, **kwargs)
    return node.target(first, *args, **kwargs)  # type: ignore[operator]


def gives_tensor(node: fx.Node) -> bool:
    """Return whether the result of `node` is a tensor, and not a size."""
    results = mase_meta(node).common.results or {}
    return any(each.is_tensor for each in results.values())
