"""Float weights of a Llama in the order in which the engine uses them, and its float model.

Two rewrites change no result. Rows of the query and key projections are reordered, so that the two
elements that the rotary embedding rotates together are neighbours. The factor 1 / sqrt(head_dim)
of the scores is split: the query projection includes its power of two, and cosines and sines the
root of the rest. A power of two keeps weights that are MXINT numbers already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from chop.errors import ConfigError

Observer = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a Llama."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one decoder layer, as (outputs, inputs)."""

    norm_1: Tensor
    key: Tensor
    value: Tensor
    query: Tensor
    output: Tensor
    norm_2: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class LlamaWeights:
    """Weights of a Llama.

    `angles`: rotation per position of each pair of elements, in radians. `rotation_scale`: factor
    of their cosines and sines.
    """

    shape: LlamaShape
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    angles: Tensor
    rotation_scale: float


def read_llama(model: Any) -> LlamaWeights:
    """Return the weights of a `LlamaForCausalLM` of transformers."""
    shape = read_shape(model.config)
    inner = model.model
    rotary = inner.rotary_emb
    if getattr(rotary, "attention_scaling", 1.0) != 1.0:
        raise ConfigError("decode: rope_scaling with an attention factor is not supported.")
    layers = tuple(_layer(layer, shape) for layer in inner.layers)
    return LlamaWeights(
        shape,
        _double(inner.embed_tokens),
        layers,
        _double(inner.norm),
        _double(model.lm_head),
        rotary.inv_freq.detach().double(),
        score_scale(shape.head_dim)[1],
    )


def read_shape(config: Any) -> LlamaShape:
    """Return the sizes in a config of transformers; raise for models that are no plain Llama."""
    kind = getattr(config, "model_type", None)
    if kind != "llama":
        raise ConfigError(f"decode: model_type must be 'llama', got {kind!r}.")
    if config.hidden_act != "silu":
        raise ConfigError(f"decode: hidden_act must be 'silu', got {config.hidden_act!r}.")
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            raise ConfigError(f"decode: {name} must be false; the engine adds no biases.")
    heads = config.num_attention_heads
    return LlamaShape(
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        eps=config.rms_norm_eps,
    )


def score_scale(head_dim: int) -> tuple[float, float]:
    """Return (a, b): a is a power of two, b from sqrt(0.5) to 1, a * b**2 = 1 / sqrt(head_dim).

    >>> score_scale(64), score_scale(16)
    ((0.125, 1.0), (0.25, 1.0))
    """
    scale = head_dim**-0.5
    power = 2.0 ** math.ceil(math.log2(scale))
    return power, math.sqrt(scale / power)


def _double(module: Any) -> Tensor:
    weight: Tensor = module.weight
    return weight.detach().double()


def _layer(layer: Any, shape: LlamaShape) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    query = _pairs(_double(attention.q_proj), shape.head_dim)
    return LayerWeights(
        norm_1=_double(layer.input_layernorm),
        key=_pairs(_double(attention.k_proj), shape.head_dim),
        value=_double(attention.v_proj),
        query=query * score_scale(shape.head_dim)[0],
        output=_double(attention.o_proj),
        norm_2=_double(layer.post_attention_layernorm),
        gate=_double(mlp.gate_proj),
        up=_double(mlp.up_proj),
        down=_double(mlp.down_proj),
    )


def _pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head from (0 … n-1) to (0, n/2, 1, n/2 + 1, …)."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[-1])
    return halves.transpose(1, 2).reshape(weight.shape)


def float_logits(weights: LlamaWeights, tokens: Tensor, observe: Observer) -> Tensor:
    """Return the logits (length, vocab) of a sequence; report each intermediate to `observe`."""
    h = weights.embedding[tokens]
    observe("hidden", h)
    for index, layer in enumerate(weights.layers):
        h = _float_layer(weights, layer, h, lambda name, x, i=index: observe(f"{i}.{name}", x))
    x = _rms_norm(h, weights.norm, weights.shape.eps)
    logits = x @ weights.head.T
    observe("x", x)
    observe("logits", logits)
    return logits


def _float_layer(weights: LlamaWeights, layer: LayerWeights, h: Tensor, observe: Any) -> Tensor:
    shape, x = weights.shape, _rms_norm(h, layer.norm_1, weights.shape.eps)
    observe("x_1", x)
    query, key, value = (x @ w.T for w in (layer.query, layer.key, layer.value))
    for name, t in (("query", query), ("key", key), ("value", value)):
        observe(name, t)
    query, key = (_rotate(t, weights) for t in (query, key))
    for name, t in (("query", query), ("key", key)):
        observe(name, t)
    attended = _attend(query, key, value, shape, observe)
    observe("attended", attended)
    h = h + attended @ layer.output.T
    observe("hidden", h)
    x = _rms_norm(h, layer.norm_2, shape.eps)
    gate, up = x @ layer.gate.T, x @ layer.up.T
    middle = functional.silu(gate) * up
    for name, t in (("x_2", x), ("gate", gate), ("up", up), ("middle", middle)):
        observe(name, t)
    h = h + middle @ layer.down.T
    observe("hidden", h)
    return h


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotations(weights: LlamaWeights, positions: int) -> Tensor:
    """Return scaled cosines and sines, as (positions, pairs, 2)."""
    turns = torch.arange(positions).double()[:, None] * weights.angles
    return torch.stack((turns.cos(), turns.sin()), -1) * weights.rotation_scale


def _rotate(x: Tensor, weights: LlamaWeights) -> Tensor:
    pairs = x.reshape(len(x), -1, weights.shape.head_dim // 2, 2)
    first, second = pairs.unbind(-1)
    cos, sin = rotations(weights, len(x))[:, None].unbind(-1)
    rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
    return rotated.reshape(x.shape)


def _attend(query: Tensor, key: Tensor, value: Tensor, shape: LlamaShape, observe: Any) -> Tensor:
    heads = query.reshape(len(query), shape.heads, -1).transpose(0, 1)
    keys, values = (
        t.reshape(len(t), shape.kv_heads, -1).repeat_interleave(shape.group, 1).transpose(0, 1)
        for t in (key, value)
    )
    scores = heads @ keys.transpose(1, 2)
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    observe("scores", scores.masked_fill(later, 0.0))
    shares = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (shares @ values).transpose(0, 1).reshape(len(query), -1)
