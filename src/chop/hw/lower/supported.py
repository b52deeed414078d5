"""Which ops have a realisation in hardware, and what to take instead where one has none."""

from __future__ import annotations

import difflib
from typing import Any

from torch import Tensor, fx

from chop.errors import HardwareError
from chop.hw.lower.registry import LOWERINGS
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, find_op, node_module


def check_supported(graph: MaseGraph) -> None:
    """Raise, before anything is made, where a node has no realisation in hardware."""
    for node in graph.fx_graph.nodes:
        op = find_op(node, graph.custom_ops)
        if node.op in ("placeholder", "get_attr", "output") or (op and op.rtl in LOWERINGS):
            continue
        nearest = _nearest(op.name if op else str(node.target))
        raise HardwareError(
            f"node '{node.name}' ({op.name if op else node.target}): no hardware component "
            f"realises it. Nearest supported: {nearest}. Supported: {', '.join(supported_ops())}."
        )


def check_finite(graph: MaseGraph) -> None:
    """Raise where a weight or constant that the graph reads has an element that is no number.

    A constant that is added may have elements of minus infinity: it is a mask.
    """
    for node in graph.fx_graph.nodes:
        if node.op == "call_module":
            module = node_module(node)
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                _check_numbers(node, f"{node.target}.{name}", tensor)
        elif node.op == "get_attr":
            tensor = attribute(graph, node)
            if isinstance(tensor, Tensor):
                _check_numbers(node, str(node.target), tensor, is_mask_allowed=True)


def _check_numbers(
    node: fx.Node, name: str, tensor: Tensor, *, is_mask_allowed: bool = False
) -> None:
    if not tensor.is_floating_point():
        return
    is_wrong = ~tensor.isfinite()
    if is_mask_allowed:
        is_wrong &= ~tensor.isneginf()
    if is_wrong.any():
        place = is_wrong.nonzero()[0].tolist()
        raise HardwareError(
            f"node '{node.name}': '{name}' is {tensor[tuple(place)].item()} at {place}, one of "
            f"{int(is_wrong.sum())} such elements. Allowed: finite numbers."
        )


def attribute(graph: MaseGraph, node: fx.Node) -> Any:
    """Return what a `get_attr` reads."""
    found: Any = graph.model
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def supported_ops() -> list[str]:
    """Ops of the table that hardware realises."""
    return sorted(op.name for op in OPS.values() if op.rtl in LOWERINGS)


_NEAREST = {
    "matmul": "linear",
    "div": "mul by the reciprocal",
    "adaptive_max_pool2d": "max_pool2d",
    "relu6": "hardsigmoid",
    "elu": "leaky_relu",
    "conv3d": "conv2d",
}


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, supported_ops(), n=1, cutoff=0.3)
    return _NEAREST.get(name) or (close[0] if close else "linear")
