"""Importance of weights by gradients on labelled batches, for pruning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from chop.actions.batch_columns import LABELS, takes
from chop.actions.trainer import loss_of, scores_of
from chop.passes.prune.importance import GradientScores


def gradient_scores(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], method: str
) -> GradientScores:
    """Return the scores of `method` summed over `batches`; gradients are deleted afterwards.

    The loss of a model without labels is computed from its scores.
    """
    scores = GradientScores(model, method)
    for batch in batches:
        inputs = {k: v for k, v in batch.items() if k != LABELS or takes(model, LABELS)}
        model.zero_grad(set_to_none=True)
        loss: Any = loss_of(scores_of(model(**inputs)), batch[LABELS])
        loss.backward()
        scores.update()
    model.zero_grad(set_to_none=True)
    return scores
