"""Masks that are added to scores: constants that no number format may round.

In 8 bits of fixed point minus infinity is -8, and a masked score of 7.5 is -0.5: not masked at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import Op, find_op
from chop.log import get_logger
from chop.nn.quantized.call_operands import DATA_OUT
from chop.nn.quantizers.arithmetic.softmax import MASKED
from chop.passes.rewrite.node_formats import operand_argument

logger = get_logger(__name__)


def without_masks(
    graph: MaseGraph, node: fx.Node, op: Op, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config of a call that neither rounds a mask among its operands nor its result.

    A mask is a constant with elements of -2**100 or less, also behind views of it.
    """
    compute = op.compute
    assert compute is not None, f"op '{op.name}' cannot be quantised"
    masks = [o.role for o in compute.operands if _is_mask(graph, operand_argument(node, o))]
    if not masks:
        return dict(config)
    logger.info("node '%s': %s is a mask; it and the result keep their values.", node.name, masks)
    return {**config, **{f"{role}_name": "NA" for role in (*masks, DATA_OUT)}}


def _is_mask(graph: MaseGraph, source: Any) -> bool:
    while isinstance(source, fx.Node) and source.op != "get_attr":
        op = find_op(source, graph.custom_ops)
        source = source.args[0] if op is not None and op.is_view and source.args else None
    if not isinstance(source, fx.Node):
        return False
    found: Any = graph.model
    for part in str(source.target).split("."):
        found = getattr(found, part)
    is_float = isinstance(found, Tensor) and found.is_floating_point()
    return is_float and bool((found <= MASKED).any())
