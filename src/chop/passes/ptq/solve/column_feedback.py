"""Columns of a weight decided one after the other; later columns compensate for earlier errors.

GPTQ (Frantar et al., 2022) rounds each column, SparseGPT (Frantar and Alistarh, 2023) prunes it.
Both minimise the error of the layer's output on the calibration data, (W - Q) H (W - Q)ᵀ with H the
sum of x xᵀ. Both distribute the error of a column over the columns that follow, by the Cholesky
factor of the inverse of H.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 128
"""Columns between two updates of all that follow; within, only the block itself is updated."""


def decide_columns(
    work: Tensor, factor: Tensor, decide: Callable[[int, Tensor], Tensor], block: int = BLOCK
) -> None:
    """Replace each column of `work` by `decide(number, column)` and correct those that follow.

    `factor` is that of `inverse_factor`, with the columns in the same order. When `decide` is
    called, the columns before hold their decided values, and the rest of the block is up to date.
    """
    diagonal = factor.diagonal().unbind()
    for start in range(0, work.shape[1], block):
        inside, after = slice(start, start + block), slice(start + block, None)
        here, factors = work[:, inside], factor[inside, inside]
        errors = work.new_empty(here.shape)
        for i, (column, error) in enumerate(zip(here.unbind(1), errors.unbind(1), strict=True)):
            decided = decide(start + i, column)
            torch.sub(column, decided, out=error).div_(diagonal[start + i])
            here[:, i + 1 :].sub_(error[:, None] * factors[i, i + 1 :])
            column.copy_(decided)
        work[:, after].sub_(errors @ factor[inside, after])


def without_dead(hessian: Tensor) -> Tensor:
    """Return H with a positive diagonal: inputs that are always zero get the mean of the others."""
    dead = hessian.diagonal() == 0
    if dead.any():
        hessian = hessian.clone()
        hessian.diagonal()[dead] = hessian.diagonal().mean().clamp(min=1e-30)
    return hessian


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """Return the upper Cholesky factor of the inverse of H; raise the damping until H has one."""
    mean = hessian.diagonal().mean()
    while True:
        lifted = hessian.clone()
        lifted.diagonal().add_(damping * mean)
        lower, info = torch.linalg.cholesky_ex(lifted)
        if int(info) == 0:
            inverse = torch.cholesky_inverse(lower)
            upper: Tensor
            upper, info = torch.linalg.cholesky_ex(inverse, upper=True)
            if int(info) == 0:
                return upper
        damping = max(10 * damping, 1e-8)
