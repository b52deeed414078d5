"""Pairs of layers in one, which save a pass over memory without gradients."""

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
"""In-place variants."""


class LinearActivation(nn.Module):
    """A linear layer (parameters shared) and its activation, in place without gradients."""

    mase_leaf: ClassVar[bool] = True

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self.weight, self.bias, self.activation = linear.weight, linear.bias, activation
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        table = ACTIVATIONS if torch.is_grad_enabled() else IN_PLACE
        return table[self.activation](y)

    def extra_repr(self) -> str:
        rows, columns = self.weight.shape
        return f"in_features={columns}, out_features={rows}, activation={self.activation}"


class AddLayerNorm(nn.Module):
    """The layer norm of a sum; parameters are shared with `norm`.

    With `overwrites` nothing else reads the first operand: without gradients it holds the sum.
    """

    mase_leaf: ClassVar[bool] = True

    def __init__(self, norm: nn.LayerNorm, *, overwrites: bool) -> None:
        super().__init__()
        self.normalized_shape, self.eps = norm.normalized_shape, norm.eps
        self.weight, self.bias, self.overwrites = norm.weight, norm.bias, overwrites
        self.train(norm.training)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        may_write = self.overwrites and not torch.is_grad_enabled() and x.shape == residual.shape
        total = x.add_(residual) if may_write else x + residual
        return F.layer_norm(total, self.normalized_shape, self.weight, self.bias, self.eps)
