"""SparseGPT: weights pruned column by column, so that the layer's output changes least.

A weight set to zero is an error like a rounded one. The weights to prune are selected a few columns
at a time, by their current values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.passes.prune.granularity import keep_largest_of_rows, keep_n_of_m
from chop.passes.ptq.solve.column_feedback import (
    BLOCK,
    decide_columns,
    inverse_factor,
    without_dead,
)


@dataclass(frozen=True)
class PruningChoice:
    """Weights to prune: `share` of each row or of all rows, or all but N of every M (`pair`)."""

    share: float
    by_row: bool = False
    pair: tuple[int, int] | None = None

    @property
    def columns(self) -> int:
        """Number of columns that are decided together."""
        return BLOCK if self.pair is None else self.pair[1]

    @property
    def block(self) -> int:
        """Number of columns between two updates of all later columns: whole decisions."""
        return max(self.columns, BLOCK - BLOCK % self.columns)

    def kept(self, scores: Tensor, gone: Tensor) -> Tensor:
        """Return the mask of a few columns by their scores; `gone` marks earlier pruned weights.

        Counts are rounded over all columns so far, so rounding errors do not add up.
        """
        if self.pair is not None:
            return keep_n_of_m(scores, *self.pair, "")
        rows = (scores, gone) if self.by_row else (scores.reshape(1, -1), gone.reshape(1, -1))
        count = round(self.share * sum(part.shape[1] for part in rows)) - rows[1].sum(1)
        already = (rows[0] == -torch.inf).sum(1)
        return keep_largest_of_rows(rows[0], torch.maximum(count, already)).view_as(scores)


def pruned_with_feedback(
    weight: Tensor, hessian: Tensor, mask: Tensor, choice: PruningChoice, damping: float
) -> tuple[Tensor, Tensor]:
    """Return the pruned weight and the mask of the kept elements, a subset of `mask`."""
    work, gone = weight.double().clone(), ~mask
    dead = hessian.diagonal() == 0  # such inputs change nothing: their weights go first
    factor = inverse_factor(without_dead(hessian.double()), damping)
    scale = factor.diagonal().square()

    def pruned(i: int, column: Tensor) -> Tensor:
        if i % choice.columns == 0:
            now = slice(i, i + choice.columns)
            scores = (work[:, now].square() / scale[now]).masked_fill(dead[now], 0.0)
            scores = scores.masked_fill(gone[:, now], -torch.inf)
            gone[:, now] = ~choice.kept(scores, gone[:, :i])
        return column.masked_fill(gone[:, i], 0.0)

    decide_columns(work, factor, pruned, choice.block)
    return work, ~gone
