"""Families of models that llama.cpp runs: names of tensors and metadata, by `model_type`.

To add a family, add a row to `FAMILIES`.
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
class GGUFFamily:
    """Names of tensors in GGUF by their names in the model, and the arrangement of their rows.

    `rotated` are layers whose rows follow the rotary embedding of llama.cpp, each with the config
    key of its number of heads. `transposed` are those that the model stores as (in, out). `ignored`
    are tensors that llama.cpp computes itself.
    """

    architecture: str
    names: Mapping[str, str]
    metadata: Callable[[Any], dict[str, Any]]
    rotated: Mapping[str, str] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = (r".*rotary_emb\..*", r".*\.attn\.(bias|masked_bias)")

    def target(self, name: str) -> str | None:
        """Return the name in GGUF of the tensor `name`, or None."""
        stem, _, leaf = name.rpartition(".")
        layer = re.search(r"\.(\d+)\.", stem)
        key = stem if layer is None else f"{stem[: layer.start()]}.{LAYER}.{stem[layer.end() :]}"
        if key not in self.names:
            return None
        place = self.names[key].replace(LAYER, layer[1] if layer else "")
        return f"{place}.{leaf}"

    def source(self, name: str) -> str | None:
        """Return the name in the model of the GGUF tensor `name`, or None."""
        stem, _, leaf = name.rpartition(".")
        layer = re.match(r"blk\.(\d+)\.", stem)
        key = stem if layer is None else f"blk.{LAYER}.{stem[layer.end() :]}"
        backwards = {place: own for own, place in self.names.items()}
        if key not in backwards:
            return None
        return f"{backwards[key].replace(LAYER, layer[1] if layer else '')}.{leaf}"

    @property
    def table(self) -> str:
        """Path of the embedding in the model."""
        return self._path_of("token_embd")

    @property
    def head(self) -> str:
        """Path of the language head in the model."""
        return self._path_of("output")

    def _path_of(self, place: str) -> str:
        return next(own for own, target in self.names.items() if target == place)

    def is_turned(self, name: str) -> bool:
        """Return True if the model stores the matrix `name` as (inputs, outputs)."""
        return name.split(".")[-2] in self.transposed

    def is_ignored(self, name: str) -> bool:
        """Return True if llama.cpp computes this tensor itself."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def arranged(self, name: str, values: Tensor, config: Any, *, back: bool = False) -> Tensor:
        """Return the rows of the tensor `name` in the order of GGUF; `back`: of the model.

        For rotated layers GGUF interleaves the two halves of the rows of each head.
        """
        key = self.rotated.get(name.split(".")[-2])
        if key is None:
            return values
        heads = getattr(config, key)
        half = values.shape[0] // heads // 2
        pairs = (heads, half, 2) if back else (heads, 2, half)
        split = values.reshape(*pairs, *values.shape[1:])
        return split.transpose(1, 2).reshape(values.shape).contiguous()


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
    metadata = _common(config)
    heads, size = metadata["attention.head_count"], metadata["attention.key_length"]
    if heads * size != config.hidden_size:
        raise ExportError(
            f"to_gguf: config.head_dim is {size}: llama.cpp takes Qwen 2 with heads of "
            f"hidden_size / num_attention_heads = {config.hidden_size / heads:g}."
        )
    return metadata


def _rope(config: Any) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    metadata: dict[str, Any] = {"rope.freq_base": float(rope.get("rope_theta", 10000.0))}
    if kind == "linear":
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    elif kind != "default":
        raise ExportError(
            f"to_gguf: config.rope_parameters.rope_type is '{kind}'. Allowed: default, linear."
        )
    return metadata


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

FAMILIES: dict[str, GGUFFamily] = {
    "llama": GGUFFamily("llama", _LLAMA, _common, _ROTATED),
    "qwen2": GGUFFamily("qwen2", _LLAMA, _qwen2),
    "qwen3": GGUFFamily("qwen3", _LLAMA, _common),
    "gpt2": GGUFFamily("gpt2", _GPT2, _gpt2, transposed=("c_attn", "c_proj", "c_fc")),
}


def family_of(config: Any, where: str) -> GGUFFamily:
    """Return the family of a model with this config."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        text = "a model without a Hugging Face config" if config is None else f"'{kind}'"
        raise ExportError(f"{where}: model_type {text}. Allowed: {', '.join(FAMILIES)}.")
    return FAMILIES[kind]


def rows_of(values: Tensor) -> Tensor:
    """Return a tensor in float32 on the CPU."""
    return values.detach().to("cpu", torch.float32)
