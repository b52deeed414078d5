"""Pruning column by column, the columns still to come making up for what goes.

The error that counts is that of a layer's output on the calibration data, as in rounding with
feedback (`gptq_rounding`): a weight that goes to zero is an error as one that is rounded. Which go
is decided a few columns at a time, from the weights as they have become by then (Frantar and
Alistarh, 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.passes.prune.granularity import keep_largest_of_rows, keep_n_of_m
from chop.passes.ptq.solve.gptq_rounding import BLOCK, inverse_factor, without_dead


@dataclass(frozen=True)
class Choice:
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

    def kept(self, scores: Tensor, before: Tensor) -> Tensor:
        """What stays of a few columns by their scores; `before` is what stayed of those before."""
        if self.pair is not None:
            return keep_n_of_m(scores, *self.pair, "")
        if not self.by_row:
            return self._kept(scores.reshape(1, -1), before.reshape(1, -1)).view_as(scores)
        return self._kept(scores, before)

    def _kept(self, scores: Tensor, before: Tensor) -> Tensor:
        """Rounding never adds up: after any column so many have gone as the share asks for."""
        wanted = round(self.share * (before.shape[1] + scores.shape[1])) - (~before).sum(1)
        already = (scores == -torch.inf).sum(1)
        return keep_largest_of_rows(scores, torch.maximum(wanted, already))


def pruned_with_feedback(
    weight: Tensor, hessian: Tensor, mask: Tensor, choice: Choice, damping: float
) -> tuple[Tensor, Tensor]:
    """The weight as it becomes, with zeros, and what stays of it; only of `mask` anything can."""
    work, keep = weight.double().clone(), mask.clone()
    dead = hessian.diagonal() == 0  # such inputs change nothing: their weights go first
    factor = inverse_factor(without_dead(hessian.double()), damping)
    scale = factor.diagonal().square()
    for start in range(0, work.shape[1], choice.block):
        end = min(start + choice.block, work.shape[1])
        errors = work.new_empty(work.shape[0], end - start)
        for i in range(start, end):
            if (i - start) % choice.columns == 0:
                now = slice(i, min(i + choice.columns, end))
                scores = (work[:, now].square() / scale[now]).masked_fill(dead[now], 0.0)
                scores = scores.masked_fill(~mask[:, now], -torch.inf)
                keep[:, now] = choice.kept(scores, keep[:, :i])
            gone = work[:, i].masked_fill(keep[:, i], 0.0)
            error = gone / factor[i, i]
            work[:, i + 1 : end] -= error[:, None] * factor[i, i + 1 : end]
            errors[:, i - start] = error
        work[:, end:] -= errors @ factor[start:end, end:]
    return work.masked_fill(~keep, 0.0), keep
