"""Ops over sequences: attention and its key-value cache."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from chop.ir import kv_cache
from chop.ir.ops.by_name import layer
from chop.ir.ops.compute import Parameters, computes
from chop.ir.ops.integer_kernels import undefined
from chop.ir.ops.row import BUILTIN_FUNC, IMPLICIT_FUNC, MODULE, Op, Shapes


def _attention_macs(s: Shapes) -> int:
    query, key, value = s.inputs[:3]
    scores = math.prod(query[:-1]) * key[-2]
    return scores * (query[-1] + value[-1])


def _multihead_macs(s: Shapes) -> int:
    # three input projections, scores, weighted sum, output projection
    query, key = s.inputs[0], s.inputs[1] if len(s.inputs) > 1 else s.inputs[0]
    embed = query[-1]
    tokens, keys = math.prod(query[:-1]), math.prod(key[:-1])
    sequence_first = len(key) == 3 and not s.config.get("batch_first", False)
    keys_seen = key[0] if sequence_first else key[-2]
    return embed * embed * (2 * tokens + 2 * keys) + 2 * tokens * keys_seen * embed


def _sequence_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q = query.transpose(0, 1)
    k = q if key is query else key.transpose(0, 1)  # equal operands are projected at once
    return q, k, k if value is key else value.transpose(0, 1)


def _multihead_attention(
    m: Any,
    p: Parameters,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    packed, of_query, of_key, of_value, packed_bias, bias_k, bias_v, out_weight, out_bias = p
    swap = m.batch_first and query.dim() == 3
    q, k, v = _sequence_first(query, key, value) if swap else (query, key, value)
    result, weights = F.multi_head_attention_forward(
        q,
        k,
        v,
        embed_dim_to_check=m.embed_dim,
        num_heads=m.num_heads,
        in_proj_weight=packed,
        in_proj_bias=packed_bias,
        bias_k=bias_k,
        bias_v=bias_v,
        add_zero_attn=m.add_zero_attn,
        dropout_p=m.dropout,
        out_proj_weight=out_weight,
        out_proj_bias=out_bias,
        training=m.training,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        attn_mask=attn_mask,
        use_separate_proj_weight=not m._qkv_same_embed_dim,
        q_proj_weight=of_query,
        k_proj_weight=of_key,
        v_proj_weight=of_value,
        average_attn_weights=average_attn_weights,
        is_causal=is_causal,
    )
    return (result.transpose(0, 1) if swap else result), weights


_MULTIHEAD_PARAMETERS = (
    "in_proj_weight q_proj_weight k_proj_weight v_proj_weight "
    "in_proj_bias bias_k bias_v out_proj.weight out_proj.bias"
)

ROWS = (
    layer(
        "multihead_attention",
        "MultiheadAttention",
        "multi_head_attention_forward",
        type=MODULE,
        macs=_multihead_macs,
        is_random=True,
        compute=computes(
            "query* key* value*",
            None,
            _multihead_attention,
            parameters=_MULTIHEAD_PARAMETERS,
            integer=undefined,
        ),
    ),
    layer(
        "scaled_dot_product_attention",
        "",
        "scaled_dot_product_attention",
        type=BUILTIN_FUNC,
        macs=_attention_macs,
        is_random=True,
        compute=computes(
            "query* key* value* attn_mask dropout_p is_causal",
            F.scaled_dot_product_attention,
            integer=undefined,
        ),
        dims="attention",
        carries_factor=(2,),
    ),
)

_CACHE_OPS: dict[str, dict[str, Any]] = {
    "past_length": {},
    "update_past": {"is_view": True, "dims": "past"},
    "update_convolution": {"is_view": True},
    "update_cross": {"is_view": True, "dims": "past"},
    "cross_source": {"is_view": True},
    "positions": {"is_view": True},
    "causal_mask": {"is_view": True},
    "bidirectional_mask": {"is_view": True},
    "recurrent_mask": {"is_view": True},
}
CACHE_ROWS = tuple(
    Op(name, IMPLICIT_FUNC, functions=(getattr(kv_cache, name),), **columns)
    for name, columns in _CACHE_OPS.items()
)
