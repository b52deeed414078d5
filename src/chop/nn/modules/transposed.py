"""Conversion of linear layers with weights (inputs, outputs), as in GPT-2, to torch's."""

from __future__ import annotations

from typing import Any

from torch import nn


def is_transposed_linear(module: nn.Module) -> bool:
    """Return True if `module` is transformers' Conv1D: `x @ weight + bias`."""
    cls = type(module)  # by name: the library need not be installed
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"


def as_linear(module: Any) -> nn.Linear:
    """Return an `nn.Linear` that computes the same as `module`, bit for bit.

    Its weight is a transposed parameter on the same storage: a change in one changes the other.
    """
    weight, bias = module.weight, module.bias
    new = nn.Linear(1, 1, bias=False, device="meta")
    new.in_features, new.out_features = weight.shape
    new.weight = nn.Parameter(weight.detach().t(), weight.requires_grad)
    if weight.grad is not None:
        new.weight.grad = weight.grad.t()
    new.bias = bias
    return new.train(module.training)
