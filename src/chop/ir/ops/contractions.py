"""Layers that multiply by a weight, and embeddings."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.ir.expert_layer import Experts, expert_rows
from chop.ir.ops.by_name import WEIGHT_BIAS, layer
from chop.ir.ops.compute import Parameters, computes
from chop.ir.ops.row import IMPLICIT_FUNC, MODULE, Op, Shapes


def _row_size(s: Shapes) -> int:
    return math.prod((s.parameters["weight"] if "weight" in s.parameters else s.inputs[1])[1:])


def _weight_macs(s: Shapes) -> int:
    # every output element is a dot product with one row of the weight
    return s.output_elements * _row_size(s)


def _packed_macs(s: Shapes) -> int:
    return s.output_elements * s.inputs[0][-1]


def _conv(m: Any, p: Parameters, x: Tensor) -> Any:
    return m._conv_forward(x, *p)


def _conv_transpose(m: Any, p: Parameters, x: Tensor, output_size: list[int] | None = None) -> Any:
    sizes = (m.stride, m.padding, m.kernel_size)
    padding = m._output_padding(x, output_size, *sizes, len(m.kernel_size), m.dilation)
    return F.conv_transpose2d(x, p[0], p[1], m.stride, m.padding, padding, m.groups, m.dilation)


def _embedding(m: Any, p: Parameters, ids: Tensor) -> Any:
    (weight,) = p
    if m.max_norm is not None and weight is not m.weight:
        weight = weight.clone()  # rows longer than max_norm are shortened in place
    options = (m.padding_idx, m.max_norm, m.norm_type, m.scale_grad_by_freq, m.sparse)
    return F.embedding(ids, weight, *options)


_CONV = "input* weight* bias* stride padding dilation groups"


def _convolution(n: int, **columns: Any) -> Op:
    names = (f"conv{n}d", f"Conv{n}d", f"conv{n}d")
    return layer(*names, parameters=WEIGHT_BIAS, macs=_weight_macs, dims="conv", **columns)


def _transposed(n: int, **columns: Any) -> Op:
    names = (f"conv_transpose{n}d", f"ConvTranspose{n}d", f"conv_transpose{n}d")
    columns |= {
        "parameters": WEIGHT_BIAS,
        "macs": lambda s: math.prod(s.inputs[0]) * _row_size(s),
        "dims": "conv_transpose",
    }
    return layer(*names, **columns)


ROWS = (
    layer(
        "linear",
        "Linear",
        "linear",
        parameters=WEIGHT_BIAS,
        macs=_weight_macs,
        compute=computes("input* weight* bias*", F.linear, lambda m, p, x: F.linear(x, *p)),
        dims="linear",
        rtl="fixed_linear",
    ),
    layer("bilinear", "Bilinear", "bilinear", parameters=WEIGHT_BIAS, macs=_weight_macs),
    _convolution(1, compute=computes(_CONV, F.conv1d, _conv), rtl="fixed_conv1d"),
    _convolution(2, compute=computes(_CONV, F.conv2d, _conv), rtl="fixed_conv2d"),
    _convolution(3),
    _transposed(1),
    _transposed(
        2,
        compute=computes(
            "input* weight* bias* stride padding output_padding groups dilation",
            F.conv_transpose2d,
            _conv_transpose,
        ),
    ),
    _transposed(3),
    layer(
        "embedding",
        "Embedding",
        "embedding",
        parameters=("weight",),
        reads_rows=True,
        compute=computes("input weight*", F.embedding, _embedding, unlike=(torch.embedding,)),
        dims="embedding",
        rtl="fixed_embedding",
    ),
    Op(
        "experts",
        MODULE,
        modules=(Experts,),
        parameters=("weight",),
        macs=_packed_macs,
        compute=computes(
            "input* weight* ends", None, lambda m, p, x, ends: m.multiply(x, p[0], ends)
        ),
    ),
    Op("expert_rows", IMPLICIT_FUNC, functions=(expert_rows,), is_view=True),
    layer(
        "embedding_bag", "EmbeddingBag", "embedding_bag", parameters=("weight",), reads_rows=True
    ),
)

FUSED = (
    Op(
        "linear_activation",
        MODULE,
        module_names=("LinearActivation",),
        parameters=WEIGHT_BIAS,
        macs=_weight_macs,
        flops_per_output=4,
    ),
    Op(
        "add_layer_norm",
        MODULE,
        module_names=("AddLayerNorm",),
        parameters=WEIGHT_BIAS,
        flops_per_output=9,
    ),
)
"""Layers that fusing passes create."""

PACKED = (
    Op("packed_linear", MODULE, module_names=("QLinearPacked", "QLinearInt8"), macs=_packed_macs),
    Op("coded_linear", MODULE, module_names=("CodedLinear",), macs=_packed_macs),
    Op("sparse_linear", MODULE, module_names=("SemiStructuredLinear",), macs=_packed_macs),
    Op("packed_experts", MODULE, module_names=("QExpertsPacked",), macs=_packed_macs),
    Op("packed_embedding", MODULE, module_names=("QEmbeddingPacked",), reads_rows=True),
)
"""Layers whose weights are stored in their number format."""
