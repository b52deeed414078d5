"""Types of ONNX that torch lacks: a wider type of torch holds their values.

Results of arithmetic in the wider type may leave the range of the type in the file. There they wrap
around, as the integers of ONNX do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from chop.export.onnx_import.onnx_file import MAIN, OnnxNode

HELD_IN_WIDER = {"INT4": 4, "UINT4": 4, "UINT16": 16, "UINT32": 32}
"""Types of ONNX that a wider type of torch holds, and their bits."""
MOVES = (
    *("Identity", "Reshape", "Transpose", "Slice", "Gather", "GatherElements", "GatherND"),
    *(
        "Concat",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Pad",
        "Expand",
        "Tile",
        "Split",
        "DepthToSpace",
    ),
    *("SpaceToDepth", "ScatterElements", "ScatterND", "Max", "Min", "Clip", "Relu", "Div", "Mod"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "ReduceMax", "ReduceMin", "MaxPool", "Trilu"),
)
"""Operators whose result has the type of the first input, and stays in its range."""
WRAPS = (
    *("Add", "Sub", "Mul", "Pow", "Neg", "Abs", "Sum", "BitwiseNot", "ReduceSum", "ReduceProd"),
    *("ReduceSumSquare", "ReduceL1", "CumSum", "MatMul", "Gemm", "Cast", "CastLike"),
)
"""Operators whose result may leave the range of its type."""


def result_kind(
    node: OnnxNode, kind: Callable[[str], str | None], by_number: Callable[[int], str]
) -> str | None:
    """Return the type of a node's first output, if the types of its inputs tell it.

    `kind`: the type of a value by its name. `by_number`: a type by its number in files.
    """
    inputs, name = node.inputs, node.operator
    if node.domain != MAIN or not inputs:
        return None
    if name == "Cast":
        return by_number(node.attributes["to"]) if "to" in node.attributes else None
    if name == "QuantizeLinear":
        if len(inputs) > 2 and inputs[2]:
            return kind(inputs[2])
        number = node.attributes.get("output_dtype", 0)
        return by_number(number) if number else "UINT8"
    if name in ("CastLike", "Where"):
        return kind(inputs[1]) if len(inputs) > 1 else None
    return kind(inputs[0]) if name in (*MOVES, *WRAPS) else None


def in_range(value: Any, kind: str | None, operator: str) -> Any:
    """Return a result of `operator` wrapped into the range of its type."""
    if kind not in HELD_IN_WIDER or operator not in WRAPS or not isinstance(value, Tensor):
        return value
    last = (1 << HELD_IN_WIDER[kind]) - 1
    if kind.startswith("U"):
        return value & last
    half = (last + 1) // 2
    return ((value + half) & last) - half
