"""Modules for values that differ between training and evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ModeConstant(nn.Module):
    """Constant with one value in training and another in evaluation.

    >>> rate = ModeConstant(train_value=0.1, eval_value=0.0)
    >>> rate(), rate.eval()()
    (0.1, 0.0)
    """

    def __init__(self, train_value: Any, eval_value: Any) -> None:
        super().__init__()
        self.train_value = train_value
        self.eval_value = eval_value

    def forward(self) -> Any:
        """Return the value for the current mode."""
        return self.train_value if self.training else self.eval_value

    def extra_repr(self) -> str:
        """Return both values, for printing."""
        return f"train_value={self.train_value!r}, eval_value={self.eval_value!r}"


class RandomDraw(nn.Module):
    """Draw of random numbers in training, without using them.

    Some models draw a number for each layer to decide whether to skip it. The graph skips none,
    but draws too, so that later random numbers equal the model's.
    """

    has_side_effect = True

    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        self.size = tuple(size)

    def forward(self) -> None:
        """Advance the random state as the model does."""
        if self.training:
            torch.rand(self.size)

    def extra_repr(self) -> str:
        """Return the size of the draw, for printing."""
        return f"size={self.size}"
