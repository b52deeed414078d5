"""Masks that are added to scores: constants with elements of -2**100 or less.

Such an element takes no part in the softmax behind it: -inf, or `torch.finfo(dtype).min` as models
of Hugging Face have. The numbers themselves are never on a wire: softmax reads the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from chop.hw.lower import fixed_formats
from chop.hw.lower.constants import parameter
from chop.hw.lower.engine import Lowerer
from chop.ir.node_arguments import operand_nodes
from chop.ir.ops import OPS
from chop.nn.quantizers.arithmetic.integer_softmax import MASKED


@dataclass(frozen=True, eq=False)
class AddedMask:
    """A constant operand of a sum that masks elements."""

    place: int
    """0 for data_in_0, 1 for data_in_1."""
    tensor: Tensor

    @property
    def is_masked(self) -> Tensor:
        """True for each element that takes no part."""
        return self.tensor <= MASKED

    @property
    def numbers(self) -> Tensor:
        """Numbers that are added to the other elements; 0 for the masked ones."""
        return torch.where(self.is_masked, 0.0, self.tensor)


def added_mask(low: Lowerer, node: fx.Node) -> AddedMask | None:
    """Return the mask that the sum `node` adds, or None.

    An operand or result that is brought to a number format is an ordinary number.
    """
    if fixed_formats.result_format(node) is not None:
        return None
    for place, source in enumerate(operand_nodes(node, low.op(node)).values()):
        if (
            source in low.values
            or fixed_formats.operand_format(node, f"data_in_{place}") is not None
        ):
            continue
        tensor = parameter(low, source)
        if tensor is not None and tensor.is_floating_point() and bool((tensor <= MASKED).any()):
            return AddedMask(place, tensor)
    return None


def check_mask_readers(low: Lowerer, node: fx.Node) -> None:
    """Raise if anything but a softmax reads `node`, which masks elements."""
    wrong = [
        user for user in node.users if user.op == "output" or low.op(user) is not OPS["softmax"]
    ]
    if wrong:
        raise low.refuse(node, f"'{wrong[0].name}' reads what is masked", "Allowed: softmax")
