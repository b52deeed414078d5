"""Which ops have a realisation in hardware, and what to take instead where one has none."""

from __future__ import annotations

import difflib

from chop.errors import HardwareError
from chop.hw.lower.registry import LOWERINGS
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, find_op


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
