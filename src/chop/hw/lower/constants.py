"""Operands that are no streams: parameters and plain numbers of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from torch import Tensor, fx

from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.lower import fixed_formats
from chop.hw.lower.calls import called
from chop.hw.lower.engine import Lowerer, Shape
from chop.hw.lower.supported import attribute
from chop.ir.meta import mase_meta
from chop.ir.node_arguments import named_arguments, operand_nodes

WIDEST = 24
"""Bits of a constant that is taken exactly, without a format."""


@dataclass(frozen=True, eq=False)
class Constant:
    """Numbers in the order of torch, without the batch, and the format that holds them."""

    values: npt.NDArray[np.float64]
    format: Fixed

    @property
    def shape(self) -> Shape:
        """Sizes of the dimensions."""
        return self.values.shape

    def encoded(self, number: Fixed) -> Ints:
        """Return codes in the format `number`, through the constant's own, as the model does."""
        own = self.format.decode(self.format.encode(self.values))
        return number.encode(own).reshape(-1)


def constant_operand(low: Lowerer, node: fx.Node, number: int) -> Constant | None:
    """Return operand `number` of `node` if it is a parameter; None if it is computed."""
    source = operand_nodes(node, low.op(node)).get(f"data_in_{number}")
    if source is None or source in low.values:
        return None
    return tensor_constant(low, node, parameter(low, source), number)


def tensor_constant(low: Lowerer, node: fx.Node, tensor: Tensor | None, number: int) -> Constant:
    """Return the tensor that is operand `number` of `node` as a constant, without its batch."""
    dims = len(mase_meta(node).common["results"]["data_out_0"]["shape"])
    if tensor is None or (tensor.dim() == dims and len(tensor) != 1):
        raise low.refuse(
            node,
            f"operand {number} is no stream and no parameter with a batch of 1",
            "Allowed: tensors that are computed of the inputs, and parameters",
        )
    values = (tensor[0] if tensor.dim() == dims else tensor).detach().double().cpu().numpy()
    number_format = fixed_formats.operand_format(node, f"data_in_{number}")
    is_held = number_format is not None and number_format.overflow == "saturate"
    if np.isneginf(values).any() and not is_held:
        raise low.refuse(
            node,
            f"operand {number} has elements of minus infinity",
            "Allowed: a mask that is added in front of a softmax, or a format that saturates",
        )
    if number_format is not None:
        return Constant(values, number_format)
    span = _span(values)
    if span.width > WIDEST:
        raise low.refuse(
            node,
            f"a constant of {span.width} bits",
            f"Allowed: binary fractions of up to {WIDEST} bits; quantise the node for others",
        )
    return Constant(values, span.format)


def scalar_operand(low: Lowerer, node: fx.Node) -> tuple[float, bool] | None:
    """Return the plain number among the two operands of `node`, and whether it is the first."""
    operands = [value for _, value in named_arguments(node)][:2]
    for k, value in enumerate(operands):
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise low.refuse(node, f"the number {value}", "Allowed: finite numbers")
            return float(value), k == 0
    return None


def scalar_constant(number: float) -> Constant | None:
    """Return `number` as a constant; None if it has more than `WIDEST` bits."""
    span = _span(np.asarray(number))
    return Constant(np.asarray(number), span.format) if span.width <= WIDEST else None


MOVED = ("expand", "view", "reshape", "unsqueeze", "squeeze", "to", "getitem", "contiguous")
"""Ops that may stand between a parameter and its reader."""


def parameter(low: Lowerer, node: fx.Node) -> Tensor | None:
    """Return the tensor of a `get_attr`, also behind views; expanded to a batch it stays one."""
    if node.op == "get_attr":
        tensor = attribute(low.graph, node)
        return tensor if isinstance(tensor, Tensor) else None
    is_moved = node.op.startswith("call") and low.op(node).name in MOVED
    if not is_moved or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    inner = parameter(low, node.args[0])
    if inner is None:
        return None
    moved: Tensor = called(node, inner)
    return moved[:1] if low.op(node).name == "expand" and len(inner) == 1 else moved


def _span(values: npt.NDArray[np.float64]) -> Span:
    """Return the range of the codes of `values`, with the fractional bits that they need."""
    exact = [Fraction(float(v)) for v in np.unique(values)]
    frac = max(e.denominator.bit_length() - 1 for e in exact)
    whole = [int(e * 2**frac) for e in exact]
    return Span(min(*whole, 0), max(*whole, 0), frac)
