"""A layer that multiplies by an orthogonal matrix."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn


class Rotation(nn.Module):
    """x @ matrix along the last dimension, in runs as long as the matrix is."""

    mase_leaf: ClassVar[bool] = True

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor) -> Tensor:
        matrix: Tensor = self.matrix  # type: ignore[assignment]
        runs = x.reshape(*x.shape[:-1], -1, len(matrix))
        return (runs @ matrix.to(x.dtype)).flatten(-2)

    def extra_repr(self) -> str:
        matrix: Tensor = self.matrix  # type: ignore[assignment]
        return str(len(matrix))
