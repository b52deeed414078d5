"""Ops with a realisation in hardware, and the nearest alternative to others."""

from __future__ import annotations

import difflib
import functools
from typing import Any

from torch import Tensor, fx

from chop.errors import HardwareError
from chop.hw.lower.lowerings import LOWERINGS
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, find_op, node_module


def check_supported(graph: MaseGraph) -> None:
    """Raise if nodes have no realisation in hardware; the error names each of their ops."""
    missing: dict[str, list[str]] = {}
    for node in graph.fx_graph.nodes:
        op = find_op(node, graph.custom_ops)
        if node.op in ("placeholder", "get_attr", "output") or (op and op.rtl in LOWERINGS):
            continue
        missing.setdefault(op.name if op else str(node.target), []).append(node.name)
    if not missing:
        return
    (name, nodes), *others = missing.items()
    close = difflib.get_close_matches(name, supported_ops(), n=1, cutoff=0.3)
    nearest = _NEAREST.get(name) or (close[0] if close else "linear")
    also = [f"{op} ({len(names)}, first '{names[0]}')" for op, names in others]
    more = f" Missing too: {', '.join(also)}." if also else ""
    raise HardwareError(
        f"node '{nodes[0]}' ({name}): no hardware component realises it. Nearest supported: "
        f"{nearest}.{more} Supported: {', '.join(supported_ops())}."
    )


def check_finite(graph: MaseGraph) -> None:
    """Raise if a weight or constant that the graph reads has an element that is no number.

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
    """Return the value that a `get_attr` reads."""
    return functools.reduce(getattr, str(node.target).split("."), graph.model)


def supported_ops() -> list[str]:
    """Return the ops of the table that hardware realises."""
    return sorted(op.name for op in OPS.values() if op.rtl in LOWERINGS)


_NEAREST = {
    "matmul": "linear",
    "div": "mul by the reciprocal",
    "adaptive_max_pool2d": "max_pool2d",
    "elu": "leaky_relu",
    "conv3d": "conv2d",
}
