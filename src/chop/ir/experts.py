"""The linear layers of all experts of a mixture, as one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPED_PRODUCTS: tuple[Callable[..., Tensor], ...] = tuple(
    getattr(place, name)
    for place, name in ((F, "grouped_mm"), (torch, "_grouped_mm"))
    if hasattr(place, name)
)
"""torch's products of rows that are sorted by expert; not every version has both."""


class Experts(nn.Module):
    """A matrix (outputs, inputs) for each expert, one below the other in `weight`.

    Rows of x are sorted by expert, and `ends` says where those of each end.

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
        """Each row of `x` times the transposed weight of its expert."""
        return self.multiply(x, self.weight, ends)

    def multiply(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """The product with `weight` in the place of the layer's own."""
        matrices = weight.view(self.experts, self.out_features, self.in_features)
        return GROUPED_PRODUCTS[0](x, matrices.transpose(-2, -1), offs=ends)

    def extra_repr(self) -> str:
        """Sizes, for printing."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"experts={self.experts}, {sizes}"
