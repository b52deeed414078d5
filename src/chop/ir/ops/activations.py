"""Activation functions, dropouts, identities and losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.ir.ops import integer_kernels
from chop.ir.ops.by_name import layer
from chop.ir.ops.compute import Compute, computes
from chop.ir.ops.row import MODULE, Op


def _activation(name: str, modules: str, functions: str, cost: float, **columns: Any) -> Op:
    return layer(
        name, modules, functions, flops_per_output=cost, **{"dims": "elementwise"} | columns
    )


def _of(function: Any) -> Compute:
    return computes("input*", function)


def _softmax(input: Tensor, dim: int | None = None, *rest: Any, **options: Any) -> Tensor:
    """Accept the arguments of torch.softmax (input, dim, dtype) and of F.softmax."""
    dtypes = [v for v in (*rest, options.get("dtype")) if isinstance(v, torch.dtype)]
    return F.softmax(input, dim, dtype=dtypes[0] if dtypes else None)


def _table(function: Any, arguments: str = "input*") -> Compute:
    return computes(arguments, function, integer=integer_kernels.by_table)


_LUT = "fixed_lut"

ROWS = (
    _activation(
        "relu",
        "ReLU",
        "relu relu_",
        1,
        compute=_of(F.relu),
        carries_factor=(0,),
        rtl="fixed_relu",
    ),
    _activation("relu6", "ReLU6", "relu6", 2, rtl="fixed_clamp"),
    _activation(
        "leaky_relu",
        "LeakyReLU",
        "leaky_relu leaky_relu_",
        2,
        compute=_of(F.leaky_relu),
        carries_factor=(0,),
        rtl="fixed_leaky_relu",
    ),
    _activation(
        "prelu",
        "PReLU",
        "prelu",
        2,
        parameters=("weight",),
        dims="norm_channel",
        rtl="fixed_prelu",
    ),
    _activation("rrelu", "RReLU", "rrelu rrelu_", 2, is_random=True),
    _activation("elu", "ELU", "elu elu_", 4, rtl=_LUT),
    _activation("celu", "CELU", "celu celu_", 4),
    _activation("selu", "SELU", "selu selu_", 5, compute=_table(F.selu)),
    _activation("gelu", "GELU", "gelu", 8, compute=_table(F.gelu), rtl=_LUT),
    _activation("silu", "SiLU", "silu", 5, compute=_table(F.silu), rtl=_LUT),
    _activation("mish", "Mish", "mish", 7, rtl=_LUT),
    _activation("tanh", "Tanh", "tanh tanh_", 5, compute=_table(torch.tanh), rtl=_LUT),
    _activation(
        "sigmoid", "Sigmoid", "sigmoid sigmoid_", 4, compute=_table(torch.sigmoid), rtl=_LUT
    ),
    _activation("logsigmoid", "LogSigmoid", "logsigmoid", 5),
    _activation(
        "softplus",
        "Softplus",
        "softplus",
        4,
        compute=_table(F.softplus, "input* beta threshold"),
        rtl=_LUT,
    ),
    _activation("softsign", "Softsign", "softsign", 3, compute=_table(F.softsign), rtl=_LUT),
    _activation("hardtanh", "Hardtanh", "hardtanh hardtanh_", 2, rtl="fixed_clamp"),
    _activation(
        "hardswish", "Hardswish", "hardswish", 5, compute=_of(F.hardswish), rtl="fixed_hardswish"
    ),
    _activation("hardsigmoid", "Hardsigmoid", "hardsigmoid", 4, rtl="fixed_hardsigmoid"),
    _activation("hardshrink", "Hardshrink", "hardshrink", 2),
    _activation("softshrink", "Softshrink", "softshrink", 2),
    _activation("tanhshrink", "Tanhshrink", "tanhshrink", 6),
    _activation("threshold", "Threshold", "threshold threshold_", 1),
    _activation(
        "softmax",
        "Softmax Softmax2d",
        "softmax",
        5,
        compute=computes("input* dim", _softmax, integer=integer_kernels.softmax),
        dims="along_dimension",
        rtl="fixed_softmax",
    ),
    _activation("softmin", "Softmin", "softmin", 6, dims="along_dimension"),
    _activation("log_softmax", "LogSoftmax", "log_softmax", 6, dims="along_dimension"),
    _activation("gumbel_softmax", "", "gumbel_softmax", 8, is_random=True, dims=None),
    _activation("glu", "GLU", "glu", 5, dims=None),
    _activation("normalize", "", "normalize", 3, dims="along_dimension"),
)


def _dropout(name: str, module: str, functions: str, *, dims: str, rtl: str = "") -> Op:
    flags = dict.fromkeys(("is_random", "is_dropout", "is_view"), True)
    return layer(name, module, functions, dims=dims, rtl=rtl, carries_factor=(0,), **flags)


DROPOUTS = (
    _dropout("dropout", "Dropout", "dropout dropout_", dims="elementwise", rtl="wire"),
    # these drop whole channels
    _dropout("dropout1d", "Dropout1d", "dropout1d", dims="per_sample", rtl="wire"),
    _dropout("dropout2d", "Dropout2d", "dropout2d", dims="per_sample", rtl="wire"),
    _dropout("dropout3d", "Dropout3d", "dropout3d", dims="per_sample"),
    _dropout("alpha_dropout", "AlphaDropout", "alpha_dropout alpha_dropout_", dims="elementwise"),
    _dropout(
        "feature_alpha_dropout", "FeatureAlphaDropout", "feature_alpha_dropout", dims="per_sample"
    ),
    Op(
        "drop_path",
        MODULE,
        module_names=("DropPath", "StochasticDepth"),
        is_random=True,
        is_dropout=True,
        is_view=True,
    ),
)

PASSING = (
    layer(
        "identity",
        "Identity",
        type=MODULE,
        is_view=True,
        dims="elementwise",
        carries_factor=(0,),
        rtl="wire",
    ),
    Op("activation_mask", MODULE, flops_per_output=1, dims="per_sample"),
)
"""Layers that return their operand, whole or masked."""


def _loss(name: str, modules: str, dims: str | None = None) -> Op:
    return layer(name, modules, name, flops_per_output=1, dims=dims)


LOSSES = (
    _loss("cross_entropy", "CrossEntropyLoss", dims="class_loss"),
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
