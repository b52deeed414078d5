"""Linear layers whose weight is stored as (inputs, outputs), as GPT-2's are, as torch's layers."""

from __future__ import annotations

from typing import Any

from torch import nn


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether `module` is transformers' Conv1D: `x @ weight + bias`.

    By its name, because the library need not be installed.
    """
    cls = type(module)
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"


def as_linear(module: Any) -> nn.Linear:
    """The `nn.Linear` that computes as `module`, on the same memory.

    Its weight is the transpose of `module.weight`, a parameter of its own over the same storage:
    what changes in one changes in the other, and the product is the same call, bit for bit.
    """
    weight, bias = module.weight, module.bias
    new = nn.Linear(1, 1, bias=False, device="meta")
    new.in_features, new.out_features = weight.shape
    new.weight = nn.Parameter(weight.detach().t(), weight.requires_grad)
    if weight.grad is not None:
        new.weight.grad = weight.grad.t()
    new.bias = bias
    return new.train(module.training)
