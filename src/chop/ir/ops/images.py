"""Pooling and other layers over images."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from chop.ir.ops.by_name import layer
from chop.ir.ops.compute import computes
from chop.ir.ops.row import BUILTIN_FUNC, Op


def _pooling(kind: str, camel: str, n: int, *, cost: float = 4, **columns: Any) -> Op:
    name = f"{kind}_pool{n}d"
    return layer(name, f"{camel}Pool{n}d", name, flops_per_output=cost, dims="places", **columns)


_AVERAGE = "input* kernel_size stride padding ceil_mode count_include_pad divisor_override"

POOLS = (
    _pooling("max", "Max", 1),
    _pooling("max", "Max", 2, rtl="fixed_max_pool"),
    _pooling("max", "Max", 3),
    _pooling("avg", "Avg", 1),
    _pooling("avg", "Avg", 2, compute=computes(_AVERAGE, F.avg_pool2d), rtl="fixed_avg_pool"),
    _pooling("avg", "Avg", 3),
    _pooling(
        "adaptive_avg",
        "AdaptiveAvg",
        1,
        compute=computes("input* output_size", F.adaptive_avg_pool1d),
    ),
    _pooling(
        "adaptive_avg",
        "AdaptiveAvg",
        2,
        compute=computes("input* output_size", F.adaptive_avg_pool2d),
        rtl="global_avg_pool",
    ),
    _pooling("adaptive_avg", "AdaptiveAvg", 3),
    *(_pooling("adaptive_max", "AdaptiveMax", n) for n in (1, 2, 3)),
    *(_pooling("lp", "LP", n, cost=6) for n in (1, 2, 3)),
)

ROWS = (
    layer(
        "interpolate",
        "Upsample UpsamplingNearest2d UpsamplingBilinear2d",
        "interpolate upsample",
        dims="places",
    ),
    layer("grid_sample", "", "grid_sample"),
    layer("affine_grid", "", "affine_grid"),
    layer("unfold", "Unfold", "unfold"),
    layer("fold", "Fold", "fold"),
    layer("pixel_shuffle", "PixelShuffle", "pixel_shuffle", rtl="wire_shuffle"),
    layer("pixel_unshuffle", "PixelUnshuffle", "pixel_unshuffle", rtl="wire_shuffle"),
    layer("channel_shuffle", "ChannelShuffle", "channel_shuffle", rtl="wire_shuffle"),
    layer(
        "pad",
        "ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d "
        "ReflectionPad2d ReplicationPad1d ReplicationPad2d CircularPad1d CircularPad2d",
        "pad",
        rtl="zero_pad",
    ),
    layer("cosine_similarity", "CosineSimilarity", "cosine_similarity", flops_per_output=6),
    layer("pairwise_distance", "PairwiseDistance", "pairwise_distance cdist"),
    layer("one_hot", "", "one_hot", type=BUILTIN_FUNC),
)
