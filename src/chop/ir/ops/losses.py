"""Losses."""

from __future__ import annotations

from chop.ir.ops.by_name import layer
from chop.ir.ops.row import Op


def _loss(name: str, modules: str) -> Op:
    return layer(name, modules, name, flops_per_output=1)


ROWS = (
    _loss("cross_entropy", "CrossEntropyLoss"),
    _loss("nll_loss", "NLLLoss NLLLoss2d"),
    _loss("mse_loss", "MSELoss"),
    _loss("l1_loss", "L1Loss"),
    _loss("smooth_l1_loss", "SmoothL1Loss"),
    _loss("huber_loss", "HuberLoss"),
    _loss("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
    _loss("binary_cross_entropy", "BCELoss"),
    _loss("kl_div", "KLDivLoss"),
    _loss("ctc_loss", "CTCLoss"),
    _loss("cosine_embedding_loss", "CosineEmbeddingLoss"),
)
