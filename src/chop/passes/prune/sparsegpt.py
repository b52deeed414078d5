"""SparseGPT: weights pruned column by column, so that the layer's output changes least.

A weight set to zero is an error as a rounded one is. The weights to prune are chosen a few columns
at a time, from their current values.
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
    """What goes: `share` of each row, or of all rows together; or all but N of every M (`pair`)."""

    share: float
    by_row: bool = False
    pair: tuple[int, int] | None = None

    @property
    def columns(self) -> int:
        """How many columns are decided at once."""
        return BLOCK if self.pair is None else self.pair[1]

    @property
    def block(self) -> int:
        """Columns between two updates of all that follow: a whole number of decisions."""
        return max(self.columns, BLOCK - BLOCK % self.columns)

    def kept(self, scores: Tensor, gone: Tensor) -> Tensor:
        """Return the mask of a few columns by their scores; `gone` marks what went before them."""
        if self.pair is not None:
            return keep_n_of_m(scores, *self.pair, "")
        if not self.by_row:
            return self._kept(scores.reshape(1, -1), gone.reshape(1, -1)).view_as(scores)
        return self._kept(scores, gone)

    def _kept(self, scores: Tensor, gone: Tensor) -> Tensor:
        """Rounding never adds up: after any column so many have gone as the share asks for."""
        wanted = round(self.share * (gone.shape[1] + scores.shape[1])) - gone.sum(1)
        already = (scores == -torch.inf).sum(1)
        return keep_largest_of_rows(scores, torch.maximum(wanted, already))


def pruned_with_feedback(
    weight: Tensor, hessian: Tensor, mask: Tensor, choice: PruningChoice, damping: float
) -> tuple[Tensor, Tensor]:
    """Return the pruned weight and the mask of what stays, which is a part of `mask`."""
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
