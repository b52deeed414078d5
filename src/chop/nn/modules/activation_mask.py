"""Pruned activations: part of each sample set to zero while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from chop.ir.ops import OPS, Op


def _smallest(x: Tensor, count: int, seed: int) -> Tensor:
    return x.abs().topk(count, dim=1, largest=False).indices


def _random(x: Tensor, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(x.shape[1], generator=generator)[:count]
    return chosen.to(x.device).expand(x.shape[0], -1)


CHOOSE: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "random": _random,
    "l1-norm": _smallest,
    "l2-norm": _smallest,
}
"""Indices of the `count` elements of each row to set to zero, by method."""


class ActivationMask(nn.Module):
    """Mask that sets the share `sparsity` of each sample to zero: smallest or random elements.

    Each sample (index of the first dimension) has its mask, so results do not depend on the
    batch; random masks are the same in every call. With a `threshold`, all elements of at most that
    magnitude are set to zero instead.
    """

    mase_leaf: ClassVar[bool] = True
    op: ClassVar[Op] = OPS["activation_mask"]

    threshold: Tensor | None

    def __init__(
        self,
        sparsity: float,
        method: str = "l1-norm",
        *,
        seed: int = 0,
        threshold: float | None = None,
    ) -> None:
        super().__init__()
        self.sparsity, self.method, self.seed = sparsity, method, seed
        self.register_buffer("threshold", None if threshold is None else torch.tensor(threshold))

    def forward(self, x: Tensor) -> Tensor:
        if self.threshold is not None:
            return x.masked_fill(x.abs() <= self.threshold, 0.0)
        rows = x.reshape(x.shape[0], -1)
        places = CHOOSE[self.method](rows, round(self.sparsity * rows.shape[1]), self.seed)
        return rows.scatter(1, places, 0.0).reshape(x.shape)

    def extra_repr(self) -> str:
        scope = "local" if self.threshold is None else "global"
        return f"sparsity={self.sparsity}, method={self.method}, scope={scope}"
