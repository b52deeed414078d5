"""Masks on the weights of chosen layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.kernels.layers import PACKED_LAYERS
from chop.log import get_logger
from chop.nn.modules.masked import stored_weight
from chop.nn.modules.semi_structured import SemiStructuredLinear
from chop.passes.change_warnings import warn_little
from chop.passes.prune.granularity import (
    block_shape,
    keep_largest,
    keep_largest_of_rows,
    keep_n_of_m,
    n_of_m,
    pool,
    spread,
)
from chop.passes.prune.importance import GradientScores, gather_scores, score
from chop.passes.prune.prunable_layers import add_mask, has_adapter, mask_of, prunable_layers
from chop.passes.prune.pruning_config import PruneArgs, PruneWeight
from chop.passes.rewrite.module_patterns import select
from chop.passes.rewrite.surgery import replace_modules

logger = get_logger(__name__)

Layers = Mapping[str, nn.Module]


def chosen_layers(graph: MaseGraph, patterns: tuple[str, ...] | None, where: str) -> Layers:
    """Return the layers to prune, by path; raise if there are none."""
    adapted = has_adapter(graph)
    if adapted is not None:
        raise PassError(
            f"prune: '{adapted}' has an adapter. Run fuse_lora_weights_transform_pass first."
        )
    layers = prunable_layers(graph)
    if not layers:
        packed = (*PACKED_LAYERS, SemiStructuredLinear)
        is_packed = any(isinstance(m, packed) for m in graph.model.modules())
        hint = " Its layers are packed: prune before packing." if is_packed else ""
        raise PassError(f"prune: the graph has no linear or convolution layer.{hint}")
    chosen = {path: layers[path] for path in select(patterns, list(layers), where)}
    warn_little("prune", "chosen", chosen.values(), graph.model)
    return chosen


def gradient_scores(graph: MaseGraph, args: PruneArgs, method: str) -> GradientScores | None:
    """Return the scores that a gradient method compares; None for other methods."""
    if isinstance(args.scores, GradientScores) and args.scores.method == method:
        return args.scores
    return gather_scores(graph.model, method, args.batches, args.loss)


def prune_weights(graph: MaseGraph, config: PruneWeight, args: PruneArgs) -> list[str]:
    """Mask the chosen layers; return their paths."""
    layers = chosen_layers(graph, config.target_modules, "prune.weight.target_modules")
    gradients = gradient_scores(graph, args, config.method)
    scores = {
        path: ranked(layer, score(w, config.method, path, seed=args.seed, gradients=gradients))
        for path, layer in layers.items()
        for w in (stored_weight(layer),)
    }
    put_masks(graph, layers, masks_of(scores, config))
    return list(layers)


def put_masks(graph: MaseGraph, layers: Layers, masks: Mapping[str, Tensor]) -> None:
    """Replace `layers` by layers with `masks`; warn if these prune nothing more."""
    old = {path: mask_of(layers[path]) for path in masks}
    if all((m if old[p] is None else m | ~old[p]).all() for p, m in masks.items()):  # type: ignore[operator]
        logger.warning("prune: no weight was pruned beyond those that were pruned before.")
    replace_modules(graph, layers, lambda path, layer: add_mask(layer, masks[path]))


def ranked(layer: nn.Module, scores: Tensor) -> Tensor:
    """Return scores with pruned weights at the bottom, so that further pruning keeps them."""
    mask = mask_of(layer)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def masks_of(scores: Mapping[str, Tensor], config: PruneWeight) -> dict[str, Tensor]:
    """Return the mask of kept elements of each weight, by its scores."""
    pair = n_of_m(config.granularity)
    if pair is not None:
        return {path: keep_n_of_m(s, *pair, path) for path, s in scores.items()}
    blocks = {
        path: block_shape(config.granularity, tuple(s.shape), config.block_size, path)
        for path, s in scores.items()
    }
    pooled = {path: pool(s, blocks[path]) for path, s in scores.items()}
    keeps = CHOOSE[config.compared_within](pooled, config.share)
    return {path: spread(mask, blocks[path]) for path, mask in keeps.items()}


def _pruned_count(pooled: Tensor) -> int:
    return int((pooled == -torch.inf).sum())


def _choose_local(pooled: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    return {path: keep_largest(s, share, _pruned_count(s)) for path, s in pooled.items()}


def _choose_in_rows(pooled: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    def choose(rows: Tensor) -> Tensor:
        already = (rows == -torch.inf).sum(1)
        return keep_largest_of_rows(rows, already.clamp(min=round(share * rows.shape[1])))

    return {path: choose(s.flatten(1)).view_as(s) for path, s in pooled.items()}


def _choose_global(pooled: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    together = torch.cat([s.flatten() for s in pooled.values()])
    keep = keep_largest(together, share, _pruned_count(together))
    parts = torch.split(keep, [s.numel() for s in pooled.values()])
    return {p: part.view_as(s) for (p, s), part in zip(pooled.items(), parts, strict=True)}


CHOOSE = {"row": _choose_in_rows, "local": _choose_local, "global": _choose_global}
"""Scope -> function that returns the masks of kept blocks from their scores, by path."""
