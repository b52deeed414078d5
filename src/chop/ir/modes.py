"""Values that differ between training and evaluation, as modules of the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ModeConstant(nn.Module):
    """A constant with one value in training and another in evaluation.

    >>> rate = ModeConstant(train_value=0.1, eval_value=0.0)
    >>> rate(), rate.eval()()
    (0.1, 0.0)
    """

    def __init__(self, train_value: Any, eval_value: Any) -> None:
        super().__init__()
        self.train_value = train_value
        self.eval_value = eval_value

    def forward(self) -> Any:
        """The value for the mode this module is in."""
        return self.train_value if self.training else self.eval_value

    def extra_repr(self) -> str:
        """Both values, for printing."""
        return f"train_value={self.train_value!r}, eval_value={self.eval_value!r}"


class RandomDraw(nn.Module):
    """Draws random numbers in training and throws them away.

    Some models draw a number for each layer to decide whether to skip it. The graph skips none,
    and draws all the same, so that the random numbers that follow are the model's.
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
        """The size of the draw, for printing."""
        return f"size={self.size}"
