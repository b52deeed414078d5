"""Linear layers of all experts of a mixture as one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPED_PRODUCTS: tuple[Callable[..., Tensor], ...] = tuple(
    getattr(place, name)
    for place, name in ((F, "grouped_mm"), (torch, "_grouped_mm"))
    if hasattr(place, name)
)
"""torch's products of rows sorted by expert; not every version has both."""

# Operators for torch.compile, which supports torch's product only in bfloat16.
_operators = torch.library.Library("mase", "FRAGMENT")
_operators.define("expert_products(Tensor x, Tensor weight, Tensor ends) -> Tensor")
_operators.define(
    "expert_gradients(Tensor gradient, Tensor x, Tensor weight, Tensor ends) -> (Tensor, Tensor)"
)


def _parts(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield each expert with its rows."""
    first = 0
    for expert, last in enumerate(ends.tolist()):
        yield expert, slice(first, last)
        first = last


def _products(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    y = x.new_zeros((x.shape[0], weight.shape[1]))
    for expert, rows in _parts(ends):
        y[rows] = x[rows] @ weight[expert].mT
    return y


def _gradients(gradient: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    to_x, to_weight = torch.zeros_like(x), torch.zeros_like(weight)
    for expert, rows in _parts(ends):
        to_x[rows] = gradient[rows] @ weight[expert]
        to_weight[expert] = gradient[rows].mT @ x[rows]
    return to_x, to_weight


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    to_x, to_weight = torch.ops.mase.expert_gradients(gradient, *ctx.saved_tensors)
    return to_x, to_weight, None


for _device in ("CPU", "CUDA", "MPS"):
    _operators.impl("expert_products", _products, _device)
    _operators.impl("expert_gradients", _gradients, _device)
torch.library.register_fake(
    "mase::expert_products",
    lambda x, weight, ends: x.new_empty((x.shape[0], weight.shape[1])),
    lib=_operators,
)
torch.library.register_fake(
    "mase::expert_gradients",
    lambda gradient, x, weight, ends: (torch.empty_like(x), torch.empty_like(weight)),
    lib=_operators,
)
torch.library.register_autograd(
    "mase::expert_products",
    _backward,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    lib=_operators,
)


class Experts(nn.Module):
    """Linear layer with a matrix (outputs, inputs) per expert, stacked in `weight`.

    Rows of x are sorted by expert; `ends` has the end of each expert's rows.

    >>> layer = Experts(nn.Parameter(torch.eye(2).repeat(3, 1)), experts=3)
    >>> layer.out_features, layer.in_features
    (2, 2)
    """

    mase_leaf: ClassVar[bool] = True

    def __init__(self, weight: nn.Parameter, experts: int) -> None:
        super().__init__()
        self.experts, self.in_features = experts, weight.shape[1]
        self.out_features = weight.shape[0] // experts
        self.weight = weight

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """Multiply each row of `x` by the transposed weight of its expert."""
        return self.multiply(x, self.weight, ends)

    def multiply(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Multiply by `weight` instead of the layer's own."""
        matrices = weight.view(self.experts, self.out_features, self.in_features)
        if torch.compiler.is_compiling() and x.dtype != torch.bfloat16:
            product: Tensor = torch.ops.mase.expert_products(x, matrices, ends)
            return product
        return GROUPED_PRODUCTS[0](x, matrices.transpose(-2, -1), offs=ends)

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"experts={self.experts}, {sizes}"


def expert_rows(x: Tensor, ends: Tensor, expert: int) -> Tensor:
    """Return the rows of one expert; rows of `x` are sorted by expert, `ends` has their ends.

    >>> expert_rows(torch.arange(4), torch.tensor([1, 1, 4]), 2)
    tensor([1, 2, 3])
    """
    first = int(ends[expert - 1]) if expert else 0
    return x[first : int(ends[expert])]
