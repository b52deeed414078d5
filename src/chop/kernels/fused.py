"""Layers that do the work of two, and save a pass over memory where torch lets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "silu": torch.ops.aten.silu_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
}
"""The same, overwriting their operand."""


class LinearActivation(nn.Module):
    """A linear layer, whose parameters are shared, and its activation.

    Without gradients the product is overwritten.
    """

    mase_leaf: ClassVar[bool] = True

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self.weight, self.bias, self.activation = linear.weight, linear.bias, activation
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """The activation of the product."""
        y = F.linear(x, self.weight, self.bias)
        table = ACTIVATIONS if torch.is_grad_enabled() else IN_PLACE
        return table[self.activation](y)

    def extra_repr(self) -> str:
        """Sizes and activation, for printing."""
        rows, columns = self.weight.shape
        return f"in_features={columns}, out_features={rows}, activation={self.activation}"


class AddLayerNorm(nn.Module):
    """The layer norm of a sum; parameters are shared with `norm`.

    `overwrites` says that nothing else reads the first operand, so that without gradients it may
    hold the sum.
    """

    mase_leaf: ClassVar[bool] = True

    def __init__(self, norm: nn.LayerNorm, *, overwrites: bool) -> None:
        super().__init__()
        self.normalized_shape, self.eps = norm.normalized_shape, norm.eps
        self.weight, self.bias, self.overwrites = norm.weight, norm.bias, overwrites
        self.train(norm.training)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """The layer norm of `x + residual`."""
        may_write = self.overwrites and not torch.is_grad_enabled() and x.shape == residual.shape
        total = x.add_(residual) if may_write else x + residual
        return F.layer_norm(total, self.normalized_shape, self.weight, self.bias, self.eps)
