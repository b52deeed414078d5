"""Operands that are no streams: parameters and numbers that the model was given."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from torch import Tensor, fx

from chop.hw.golden import Fixed, Ints, Span
from chop.hw.lower import formats
from chop.hw.lower.calls import called
from chop.hw.lower.engine import Lowerer, Shape
from chop.ir.arguments import named_arguments, operand_nodes
from chop.ir.meta import mase_meta

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
        """Codes in the format `number`: through the constant's own, as the model does."""
        own = self.format.decode(self.format.encode(self.values))
        return number.encode(own).reshape(-1)


def constant_operand(low: Lowerer, node: fx.Node, number: int) -> Constant | None:
    """Operand `number` of `node` where it is a parameter; None where it is computed."""
    source = operand_nodes(node, low.op(node)).get(f"data_in_{number}")
    if source is None or source in low.values:
        return None
    tensor = parameter(low, source)
    dims = len(mase_meta(node).common["results"]["data_out_0"]["shape"])
    if tensor is None or (tensor.dim() == dims and len(tensor) != 1):
        raise low.refuse(
            node,
            f"operand {number} is no stream and no parameter with a batch of 1",
            "Allowed: tensors that are computed of the inputs, and parameters",
        )
    values = (tensor[0] if tensor.dim() == dims else tensor).detach().double().cpu().numpy()
    return _constant(low, node, values, formats.operand_format(node, f"data_in_{number}"))


def scalar_operand(low: Lowerer, node: fx.Node) -> tuple[Constant, bool] | None:
    """The number among the two operands of `node`, and whether it is the first."""
    given = [value for _, value in named_arguments(node)][:2]
    for k, value in enumerate(given):
        if isinstance(value, int | float) and not isinstance(value, bool):
            hint = "no format applies to a plain number: make it a parameter"
            return _constant(low, node, np.asarray(float(value)), None, hint), k == 0
    return None


MOVED = ("expand", "view", "reshape", "unsqueeze", "squeeze", "to", "getitem", "contiguous")
"""What may stand between a parameter and who reads it."""


def parameter(low: Lowerer, node: fx.Node) -> Tensor | None:
    """The tensor of a `get_attr`, also behind views of it; expanded to a batch it stays one."""
    if node.op == "get_attr":
        found = low.graph.model
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return found if isinstance(found, Tensor) else None
    is_moved = node.op.startswith("call") and low.op(node).name in MOVED
    if not is_moved or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    inner = parameter(low, node.args[0])
    if inner is None:
        return None
    moved: Tensor = called(node, inner)
    return moved[:1] if low.op(node).name == "expand" and len(inner) == 1 else moved


def _constant(
    low: Lowerer,
    node: fx.Node,
    values: npt.NDArray[np.float64],
    wanted: Fixed | None,
    otherwise: str = "quantise the node for others",
) -> Constant:
    if wanted is not None:
        return Constant(values, wanted)
    exact = [Fraction(float(v)) for v in np.unique(values)]
    frac = max(e.denominator.bit_length() - 1 for e in exact)
    whole = [int(e * 2**frac) for e in exact]
    span = Span(min(*whole, 0), max(*whole, 0), frac)
    if span.width > WIDEST:
        raise low.refuse(
            node,
            f"a constant of {span.width} bits",
            f"Allowed: binary fractions of up to {WIDEST} bits; {otherwise}",
        )
    return Constant(values, span.format)
