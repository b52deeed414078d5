"""Pruning of experts, with a report: which, how often they were routed, loss before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis.sensitivity import difference, outputs
from chop.passes.rewrite.expert_removal import (
    ExpertGroup,
    expert_groups,
    remove_experts,
    routed_tokens,
)

WHERE = "prune.batches"


def prune_experts(graph: MaseGraph, batches: Sequence[Any], keep: int) -> dict[str, Any]:
    """Keep the `keep` experts of each layer that the router chooses most; return a record.

    `removed`: for each layer the experts, and the share of its tokens that went to them. `tokens`:
    the tokens of every expert before. `divergence`: of the outputs from those before, in nats per
    row. `loss`: of the next token before and after, if the batches have `input_ids`.
    """
    groups = expert_groups(graph)
    _check(graph, groups, keep)
    before = list(outputs(graph, list(batches), WHERE))
    tokens = routed_tokens(graph, groups, batches)
    order = {
        path: own.argsort(descending=True, stable=True).tolist() for path, own in tokens.items()
    }
    remaining = {path: sorted(own[:keep]) for path, own in order.items()}
    remove_experts(graph, remaining)
    after = list(outputs(graph, list(batches), WHERE))
    return {
        "experts": {"before": groups[0].size, "after": keep},
        "removed": [_removed(path, own, remaining[path]) for path, own in tokens.items()],
        "tokens": {path: own.tolist() for path, own in tokens.items()},
        "divergence": difference(after, before)["loss"],
        "loss": {
            "before": _next_token_loss(before, batches),
            "after": _next_token_loss(after, batches),
        },
    }


def _removed(path: str, tokens: Tensor, remaining: Sequence[int]) -> dict[str, Any]:
    experts = [e for e in range(len(tokens)) if e not in remaining]
    share = float(tokens[experts].sum()) / max(float(tokens.sum()), 1.0)
    return {"layer": path, "experts": experts, "tokens": tokens[experts].tolist(), "share": share}


def _check(graph: MaseGraph, groups: Sequence[ExpertGroup], keep: int) -> None:
    """Raise unless each layer has more than `keep` experts and each token finds its number."""
    config = getattr(graph.model, "config", None)
    least, most = int(getattr(config, "num_experts_per_tok", 1)), min(g.size for g in groups)
    if not least <= keep < most:
        raise ConfigError(
            f"prune.experts: {keep} experts to keep. Allowed: from {least}, which each token is "
            f"sent to, to {most - 1}, one fewer than a layer has."
        )


def _next_token_loss(scores: Sequence[Tensor], batches: Sequence[Any]) -> float | None:
    """Return the mean loss of the next token in nats; None if the data has no tokens."""
    total, count = 0.0, 0
    for logits, batch in zip(scores, batches, strict=True):
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if ids is None or logits.dim() != 3 or logits.shape[:2] != ids.shape:
            return None
        mask = batch.get("attention_mask", torch.ones_like(ids))[:, 1:].bool()
        targets = ids[:, 1:].masked_fill(~mask, -100)
        total += float(F.cross_entropy(logits[:, :-1].mT.float(), targets, reduction="sum"))
        count += int(mask.sum())
    return total / max(count, 1)
