"""Perplexity of language models, and the agreement of two models on the next token.

Text is rows of tokens; each token but the first of a row is predicted from those before it. The
scores of a batch are dropped after it, because those of a dataset would fill the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.actions.trainer import scores_of
from chop.dataset.row_selection import IGNORED
from chop.errors import ConfigError, DataError
from chop.ir.trace.environment import evaluation_mode
from chop.log import get_logger, log_step

logger = get_logger(__name__)

PERPLEXITY, AGREEMENT = "perplexity", "token_agreement"
LANGUAGE_METRICS = (PERPLEXITY, AGREEMENT)
"""Metrics that are measured here, batch by batch."""


def measure_language(
    model: nn.Module,
    rows: Any,
    *,
    batch_size: int = 8,
    reference: nn.Module | None = None,
    metric: str = PERPLEXITY,
) -> dict[str, float]:
    """Return the metric of `model` on rows of tokens, and the loss in nats per token.

    `token_agreement`: share of positions at which `model` and `reference` choose the same token.
    """
    if metric == AGREEMENT and reference is None:
        raise ConfigError(f"metric: {AGREEMENT} compares with another model, and none is given.")
    total, same, count = 0.0, 0, 0
    batches = -(-len(rows) // batch_size)
    for number, batch in enumerate(batches_of(rows, batch_size), 1):
        log_step(logger, "evaluate: batch", number, batches)
        scores, tokens = next_token_scores(model, batch)
        counts = tokens != IGNORED
        flat = scores.flatten(0, 1).float()
        total += float(
            F.cross_entropy(flat, tokens.flatten(), ignore_index=IGNORED, reduction="sum")
        )
        count += int(counts.sum())
        if reference is not None:
            chosen = next_token_scores(reference, batch)[0].argmax(-1)
            same += int((scores.argmax(-1) == chosen)[counts].sum())
    if not count:
        raise DataError("there is no token to predict: rows need two tokens or more.")
    loss = total / count
    metrics = {PERPLEXITY: math.exp(loss), "loss": loss}
    return metrics if reference is None else {AGREEMENT: same / count, **metrics}


@torch.no_grad()
def next_token_scores(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the scores of every next token, and the next tokens."""
    device = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    names = getattr(model, "input_names", ("input_ids", "attention_mask"))
    inputs = {k: v.to(device) for k, v in batch.items() if k in names}
    ids = batch["labels"].to(device)
    try:
        with evaluation_mode(model):
            output = model(**inputs)
        if isinstance(output, tuple) and len(output) > 1 and output[0].dim() == 0:
            output = output[1:]  # without the loss
        scores = scores_of(output)
        shown = f"gives scores of shape {list(scores.shape)}"
    except ValueError as error:  # the loss of a classifier does not fit tokens
        scores, shown = torch.empty(0), f"fails ({error})"
    if scores.dim() != 3 or scores.shape[:2] != ids.shape:
        raise ConfigError(
            f"metric: the model {shown} for rows of shape {list(ids.shape)}; perplexity and "
            "token_agreement need a score for each token of the vocabulary at each place. Give a "
            "causal language model (--task causal-lm)."
        )
    return scores[:, :-1], ids[:, 1:]


def batches_of(rows: Any, batch_size: int) -> Iterator[dict[str, Tensor]]:
    """Yield rows as batches, padded on the right."""
    for start in range(0, len(rows), batch_size):
        yield _batch([rows[i] for i in range(start, min(start + batch_size, len(rows)))])


def _batch(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    if "input_ids" not in rows[0]:
        raise DataError(f"the dataset has no tokens (input_ids): {', '.join(rows[0])}.")
    ids = [torch.as_tensor(row["input_ids"]).long() for row in rows]
    longest = max(len(each) for each in ids)
    padded = torch.stack([F.pad(each, (0, longest - len(each))) for each in ids])
    mask = torch.stack([(torch.arange(longest) < len(each)).long() for each in ids])
    labels = padded.masked_fill(mask == 0, IGNORED)
    for row, own_labels, own_ids in zip(rows, labels, ids, strict=True):
        if "labels" in row:  # tokens that are context alone have none
            own_labels[: len(own_ids)] = torch.as_tensor(row["labels"])
    return {"input_ids": padded, "attention_mask": mask, "labels": labels}
