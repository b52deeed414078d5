"""The families of models that llama.cpp runs: names of tensors and metadata, by `model_type`.

Add a family: a row in `FAMILIES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chop.errors import ExportError

LAYER = "{layer}"


@dataclass(frozen=True)
class Family:
    """Tensors of a family: GGUF's names by the model's, and what their rows go through.

    `rotated` are layers whose rows llama.cpp wants in the order of its own rotary embedding, each
    with the config key of its number of heads; `transposed` are those that the model keeps as
    (in, out). `ignored` are tensors of the model that are computed there.
    """

    architecture: str
    names: Mapping[str, str]
    metadata: Callable[[Any], dict[str, Any]]
    rotated: Mapping[str, str] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = (r".*rotary_emb\..*", r".*\.attn\.(bias|masked_bias)")

    def target(self, name: str) -> str | None:
        """GGUF's name of the tensor `name`; None where it has none there."""
        stem, _, leaf = name.rpartition(".")
        layer = re.search(r"\.(\d+)\.", stem)
        key = stem if layer is None else f"{stem[: layer.start()]}.{LAYER}.{stem[layer.end() :]}"
        if key not in self.names:
            return None
        place = self.names[key].replace(LAYER, layer[1] if layer else "")
        return f"{place}.{leaf}"

    def source(self, name: str) -> str | None:
        """The model's name of GGUF's tensor `name`."""
        stem, _, leaf = name.rpartition(".")
        layer = re.match(r"blk\.(\d+)\.", stem)
        key = stem if layer is None else f"blk.{LAYER}.{stem[layer.end() :]}"
        backwards = {place: own for own, place in self.names.items()}
        if key not in backwards:
            return None
        return f"{backwards[key].replace(LAYER, layer[1] if layer else '')}.{leaf}"

    def is_turned(self, name: str) -> bool:
        """Whether the model keeps the matrix `name` as (inputs, outputs)."""
        return name.split(".")[-2] in self.transposed

    def is_ignored(self, name: str) -> bool:
        """Whether the target computes this tensor itself."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def arranged(self, name: str, values: Tensor, config: Any, *, back: bool = False) -> Tensor:
        """Rows (outputs) of the model's tensor `name` as GGUF has them; `back`: the other way."""
        owner = name.split(".")[-2]
        heads = self.rotated.get(owner)
        return values if heads is None else _rotary_order(values, getattr(config, heads), back)


def _rotary_order(values: Tensor, heads: int, back: bool) -> Tensor:
    """Rows of each head with the two halves interleaved, or taken apart again."""
    rest = values.shape[1:]
    size = values.shape[0] // heads
    pairs = (heads, size // 2, 2) if back else (heads, 2, size // 2)
    return values.reshape(*pairs, *rest).transpose(1, 2).reshape(values.shape).contiguous()


def _common(config: Any) -> dict[str, Any]:
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": size,
        "vocab_size": config.vocab_size,
        **_rope(config),
    }


def _qwen2(config: Any) -> dict[str, Any]:
    told = _common(config)
    heads, size = told["attention.head_count"], told["attention.key_length"]
    if heads * size != config.hidden_size:
        raise ExportError(
            f"to_gguf: config.head_dim is {size}: llama.cpp takes Qwen 2 with heads of "
            f"hidden_size / num_attention_heads = {config.hidden_size / heads:g}."
        )
    return told


def _rope(config: Any) -> dict[str, Any]:
    told = getattr(config, "rope_parameters", None) or {}
    kind = told.get("rope_type", "default")
    found: dict[str, Any] = {"rope.freq_base": float(told.get("rope_theta", 10000.0))}
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(told["factor"])}
    elif kind != "default":
        raise ExportError(
            f"to_gguf: config.rope_parameters.rope_type is '{kind}'. Allowed: default, linear."
        )
    return found


def _gpt2(config: Any) -> dict[str, Any]:
    return {
        "block_count": config.n_layer,
        "context_length": config.n_positions,
        "embedding_length": config.n_embd,
        "feed_forward_length": config.n_inner or 4 * config.n_embd,
        "attention.head_count": config.n_head,
        "attention.layer_norm_epsilon": float(config.layer_norm_epsilon),
        "vocab_size": config.vocab_size,
    }


_LLAMA_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    **{f"model.layers.{LAYER}.{k}": f"blk.{LAYER}.{v}" for k, v in _LLAMA_LAYER.items()},
}
_GPT2_LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    **{f"transformer.h.{LAYER}.{k}": f"blk.{LAYER}.{v}" for k, v in _GPT2_LAYER.items()},
}
_ROTATED = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", _LLAMA, _common, _ROTATED),
    "qwen2": Family("qwen2", _LLAMA, _qwen2),
    "qwen3": Family("qwen3", _LLAMA, _common),
    "gpt2": Family("gpt2", _GPT2, _gpt2, transposed=("c_attn", "c_proj", "c_fc")),
}


def family_of(config: Any, where: str) -> Family:
    """The family of a model with this config."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        given = "a model without a Hugging Face config" if config is None else f"'{kind}'"
        raise ExportError(f"{where}: model_type {given}. Allowed: {', '.join(FAMILIES)}.")
    return FAMILIES[kind]


def rows_of(values: Tensor) -> Tensor:
    """A tensor in float32 on the CPU."""
    return values.detach().to("cpu", torch.float32)
