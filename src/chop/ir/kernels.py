"""How each quantisable op computes, given operands that are quantised already.

To make an op quantisable, add a row to `COMPUTE` under the op's name: the arguments of its
function with the operands starred, the function, and for a layer with parameters its kernel
`(module, parameters, *arguments) -> result`. A layer without parameters needs no kernel: its own
forward computes on quantised inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Kernel = Callable[..., Any]
Parameters = Any  # a tuple of Tensor | None; torch's signatures cannot be checked against it


@dataclass(frozen=True)
class Operand:
    """A tensor that an op computes with.

    `position` and `argument` say where the call has it; `role` names its format in a config
    (`data_in`, `weight` …). `prefer` is a role whose settings win where a config has them.
    """

    position: int
    argument: str
    role: str
    prefer: str | None = None


@dataclass(frozen=True)
class Compute:
    """The arithmetic of one op: its operands, its function and its layer's kernel."""

    arguments: tuple[str, ...]
    operands: tuple[Operand, ...]
    function: Callable[..., Any] | None
    kernel: Kernel | None
    parameters: tuple[str, ...]
    unlike: tuple[Callable[..., Any], ...]

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that a layer is called with."""
        return tuple(o for o in self.operands if o.argument not in self.parameters)

    @property
    def layer_roles(self) -> tuple[str, ...]:
        """The roles of a layer's inputs and parameters, each once."""
        roles = [o.role for o in self.inputs] + [parameter_role(p) for p in self.parameters]
        return tuple(dict.fromkeys(roles))


def parameter_role(name: str) -> str:
    """The role of a layer's parameter: `in_proj_bias` -> `bias`, `out_proj.weight` -> `weight`."""
    return "bias" if "bias" in name else "weight"


def _compute(
    arguments: str,
    function: Callable[..., Any] | None,
    kernel: Kernel | None = None,
    *,
    parameters: str | None = None,
    prefer: Mapping[str, str] | None = None,
    unlike: tuple[Callable[..., Any], ...] = (),
) -> Compute:
    """A row; in `arguments`, operands end in a star and parameters go by their own name."""
    names = tuple(name.removesuffix("*") for name in arguments.split())
    starred = [i for i, name in enumerate(arguments.split()) if name.endswith("*")]
    own = [names[i] for i in starred if names[i] in ("weight", "bias")]
    inputs = [i for i in starred if names[i] not in own]
    roles = {i: "data_in" if len(inputs) == 1 else f"data_in_{n}" for n, i in enumerate(inputs)}
    operands = tuple(
        Operand(i, names[i], roles.get(i, names[i]), (prefer or {}).get(names[i])) for i in starred
    )
    listed = tuple(own if parameters is None else parameters.split())
    return Compute(names, operands, function, kernel, listed, unlike)


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


def _python_or_torch(
    python: Callable[..., Any], of_torch: Callable[..., Any]
) -> Callable[..., Any]:
    """The operator, which takes numbers too; torch's function where a call has options."""

    def call(input: Any, other: Any, **options: Any) -> Any:
        return of_torch(input, other, **options) if options else python(input, other)

    return call


def _softmax(input: Tensor, dim: int | None = None, *rest: Any, **options: Any) -> Tensor:
    """Takes the calls of torch.softmax (input, dim, dtype) and of F.softmax alike."""
    dtypes = [v for v in (*rest, options.get("dtype")) if isinstance(v, torch.dtype)]
    return F.softmax(input, dim, dtype=dtypes[0] if dtypes else None)


_CONV = "input* weight* bias* stride padding dilation groups"
_ATTENTION_PARAMETERS = (
    "in_proj_weight q_proj_weight k_proj_weight v_proj_weight "
    "in_proj_bias bias_k bias_v out_proj.weight out_proj.bias"
)

COMPUTE: dict[str, Compute] = {
    "linear": _compute("input* weight* bias*", F.linear, lambda m, p, x: F.linear(x, *p)),
    "conv1d": _compute(_CONV, F.conv1d, _conv),
    "conv2d": _compute(_CONV, F.conv2d, _conv),
    "conv_transpose2d": _compute(
        "input* weight* bias* stride padding output_padding groups dilation",
        F.conv_transpose2d,
        _conv_transpose,
    ),
    "embedding": _compute("input weight*", F.embedding, _embedding, unlike=(torch.embedding,)),
    "layer_norm": _compute(
        "input* normalized_shape weight* bias*",
        F.layer_norm,
        lambda m, p, x: F.layer_norm(x, m.normalized_shape, p[0], p[1], m.eps),
    ),
    "rms_norm": _compute(
        "input* normalized_shape weight*",
        F.rms_norm,
        lambda m, p, x: F.rms_norm(x, m.normalized_shape, p[0], m.eps),
    ),
    "group_norm": _compute(
        "input* num_groups weight* bias*",
        F.group_norm,
        lambda m, p, x: F.group_norm(x, m.num_groups, p[0], p[1], m.eps),
    ),
    "batch_norm1d": _compute("input* weight* bias*", None, _batch_norm),
    "batch_norm2d": _compute("input* weight* bias*", None, _batch_norm),
    "multihead_attention": _compute(
        "query* key* value*", None, _multihead_attention, parameters=_ATTENTION_PARAMETERS
    ),
    "relu": _compute("input*", F.relu),
    "leaky_relu": _compute("input*", F.leaky_relu),
    "gelu": _compute("input*", F.gelu),
    "silu": _compute("input*", F.silu),
    "selu": _compute("input*", F.selu),
    "tanh": _compute("input*", torch.tanh),
    "sigmoid": _compute("input*", torch.sigmoid),
    "softplus": _compute("input* beta threshold", F.softplus),
    "softsign": _compute("input*", F.softsign),
    "hardswish": _compute("input*", F.hardswish),
    "softmax": _compute("input* dim", _softmax),
    "avg_pool2d": _compute(
        "input* kernel_size stride padding ceil_mode count_include_pad divisor_override",
        F.avg_pool2d,
    ),
    "adaptive_avg_pool1d": _compute("input* output_size", F.adaptive_avg_pool1d),
    "adaptive_avg_pool2d": _compute("input* output_size", F.adaptive_avg_pool2d),
    "add": _compute("input* other*", _python_or_torch(operator.add, torch.add)),
    "sub": _compute(
        "input* other*", _python_or_torch(operator.sub, torch.sub), unlike=(torch.rsub,)
    ),
    "mul": _compute("input* other*", _python_or_torch(operator.mul, torch.mul)),
    "matmul": _compute("input* other*", torch.matmul, prefer={"other": "weight"}),
    "bmm": _compute("input* mat2*", torch.bmm, prefer={"mat2": "weight"}),
    "scaled_dot_product_attention": _compute(
        "query* key* value* attn_mask dropout_p is_causal", F.scaled_dot_product_attention
    ),
}
"""The quantisable ops, by the name of their row in the op table."""
