"""Normalisation."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from chop.ir.ops import integer_kernels
from chop.ir.ops.by_name import WEIGHT_BIAS, layer
from chop.ir.ops.compute import Parameters, computes
from chop.ir.ops.row import MODULE, Op


def _batch_norm(m: Any, p: Parameters, x: Tensor) -> Any:
    m._check_input_dim(x)
    momentum = 0.0 if m.momentum is None else m.momentum
    updates = m.training and m.track_running_stats
    if updates and m.num_batches_tracked is not None:
        m.num_batches_tracked.add_(1)
        if m.momentum is None:  # cumulative average
            momentum = 1.0 / float(m.num_batches_tracked)
    keeps = updates or not m.training
    mean, variance = (m.running_mean, m.running_var) if keeps else (None, None)
    of_batch = m.training or (m.running_mean is None and m.running_var is None)
    return F.batch_norm(x, mean, variance, p[0], p[1], of_batch, momentum, m.eps)


def _batch_norm_row(name: str, modules: str, functions: str = "", **columns: Any) -> Op:
    columns |= {"type": MODULE, "parameters": WEIGHT_BIAS, "flops_per_output": 4}
    return layer(name, modules, functions, is_stateful=True, dims="norm_channel", **columns)


_QUANTISED_BATCH_NORM = computes("input* weight* bias*", None, _batch_norm)

ROWS = (
    layer(
        "layer_norm",
        "LayerNorm",
        "layer_norm",
        parameters=WEIGHT_BIAS,
        flops_per_output=8,
        compute=computes(
            "input* normalized_shape weight* bias*",
            F.layer_norm,
            lambda m, p, x: F.layer_norm(x, m.normalized_shape, p[0], p[1], m.eps),
            integer=integer_kernels.layer_norm,
        ),
        dims="norm_last",
        rtl="fixed_layer_norm",
    ),
    layer(
        "rms_norm",
        "RMSNorm",
        "rms_norm",
        parameters=("weight",),
        flops_per_output=5,
        compute=computes(
            "input* normalized_shape weight*",
            F.rms_norm,
            lambda m, p, x: F.rms_norm(x, m.normalized_shape, p[0], m.eps),
            integer=integer_kernels.rms_norm,
        ),
        dims="norm_last",
        rtl="fixed_rms_norm",
    ),
    layer(
        "group_norm",
        "GroupNorm",
        "group_norm",
        parameters=WEIGHT_BIAS,
        flops_per_output=8,
        compute=computes(
            "input* num_groups weight* bias*",
            F.group_norm,
            lambda m, p, x: F.group_norm(x, m.num_groups, p[0], p[1], m.eps),
            integer=integer_kernels.undefined,
        ),
        dims="norm_group",
    ),
    _batch_norm_row(
        "batch_norm1d", "BatchNorm1d", compute=_QUANTISED_BATCH_NORM, rtl="fixed_batch_norm"
    ),
    _batch_norm_row(
        "batch_norm2d", "BatchNorm2d", compute=_QUANTISED_BATCH_NORM, rtl="fixed_batch_norm"
    ),
    _batch_norm_row("batch_norm3d", "BatchNorm3d"),
    _batch_norm_row("batch_norm", "SyncBatchNorm", "batch_norm"),
    layer(
        "instance_norm",
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
        "instance_norm",
        parameters=WEIGHT_BIAS,
        flops_per_output=8,
        is_stateful=True,
        dims="norm_channel",
    ),
    layer("local_response_norm", "LocalResponseNorm", "local_response_norm", flops_per_output=8),
)
