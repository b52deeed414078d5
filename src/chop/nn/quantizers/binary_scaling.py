"""One bit with a scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.nn.quantizers.binary import Binary


@dataclass(frozen=True)
class BinaryScaling(Binary):
    """`Binary` times the mean of |x|, of the whole tensor or of each channel along `axis`.

    >>> BinaryScaling().quantize(torch.tensor([0.5, -0.25])).tolist()
    [0.375, -0.375]
    """

    name, class_suffix = "binary_scaling", "BinaryScaling"

    axis: int | None = None

    def part_unit(self, rank: int, dim: int) -> int | None:
        return None if self.is_random else channel_unit(self.axis, rank, dim)

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return super().represent(x, noise) * mean_magnitude(x, self.axis)

    def value_set(self) -> Tensor | None:
        return None


def channel_unit(axis: int | None, rank: int, dim: int) -> int | None:
    """Return the unit of parts of a tensor with a mean per index of `axis`, or one mean.

    Only means over the inner dimensions have the same bits in a part.
    """
    return 1 if axis is not None and axis % rank == dim == 0 else None


def mean_magnitude(x: Tensor, axis: int | None) -> Tensor:
    """Return the mean of |x| over all dimensions but `axis`; broadcasts with `x`."""
    others = [d for d in range(x.dim()) if axis is None or d != axis % x.dim()]
    magnitude = x.abs()
    return magnitude.mean(others, keepdim=True) if others else magnitude


def sign(x: Tensor) -> Tensor:
    """Return +1 where x >= 0 (both zeros), else -1; NaN stays NaN."""
    return torch.where(x.isnan(), x, torch.where(x >= 0, 1.0, -1.0).to(x.dtype))
