"""Small, randomly initialised models of every type transformers knows, with inputs.

A config is made small by the names of its fields. To make another type build, add what its fields
must be to `FIELDS` or, where they are its own, to `OF_TYPE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_MAPPING, MODEL_MAPPING_NAMES

from chop.ir.trace.inputs import Signature

VOCABULARY, WIDTH, HEADS, HEAD = 99, 64, 4, 16
MOST_PARAMETERS = 40_000_000

FIELDS: dict[str, Any] = {
    **dict.fromkeys(
        ("vocab_size", "text_vocab_size", "src_vocab_size", "tgt_vocab_size"), VOCABULARY
    ),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "width", "emb_dim", "hidden_dim"),
        WIDTH,
    ),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "projection_dim"), WIDTH),
    **dict.fromkeys(
        ("head_dim", "d_kv", "attention_head_dim", "mamba_d_head", "kv_channels"), HEAD
    ),
    **dict.fromkeys(
        (
            *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
            *("decoder_attention_heads", "attention_heads"),
        ),
        HEADS,
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(
        (
            *("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
            *("n_inner", "mlp_dim", "ffn_hidden_size", "hidden_dim_ffn", "d_inner"),
        ),
        2 * WIDTH,
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"),
            *("decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth"),
            *("encoder_num_hidden_layers", "decoder_num_hidden_layers"),
        ),
        2,
    ),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": HEAD,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length"), 128),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    "mamba_head_dim": HEAD,
    "mamba_d_ssm": 2 * WIDTH,
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 2),
    "rotary_dim": 8,
    "image_size": 32,
    "patch_size": 8,
    "max_source_positions": 100,
    "max_target_positions": 128,
    "num_mel_bins": 80,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What a field of this name is set to, in any config that has it with a value of its kind."""

PER_STAGE = {"hidden_sizes": 16, "embed_dims": 16}
"""Fields with a width for each stage: so many times the number of the stage."""
DERIVED = {"out_features", "out_indices", "stage_names", "_out_features", "_out_indices"}
"""Fields that follow from others."""

OF_TYPE: dict[str, dict[str, Any]] = {
    "swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    "mamba": {"intermediate_size": 128, "time_step_rank": 4},
    # latent attention makes as many keys as queries
    **{
        kind: {"num_key_value_heads": HEADS}
        for kind in ("deepseek_v3", "axk1", "glm4_moe_lite", "kimi_k25", "minicpm3", "youtu")
    },
}
SHALLOW = {
    k: v
    for k, v in FIELDS.items()
    if "layer" in k or k in ("depth", "vocab_size", "use_cache", "mask_time_prob")
}
"""Of a config that is not right when it is narrow: fewer layers alone."""
INPUT_SETS = (
    ("input_ids",),
    ("input_ids", "decoder_input_ids"),
    ("pixel_values",),
    ("input_values",),
    ("input_features",),
    ("input_ids", "attention_mask"),
    ("input_ids", "pixel_values"),
    ("input_features", "decoder_input_ids"),
    ("inputs_embeds",),
    ("hidden_states",),
)


@dataclass(frozen=True)
class Tiny:
    """A model, inputs to capture it at, and inputs of other sizes that it takes."""

    model: nn.Module
    inputs: dict[str, torch.Tensor]
    others: list[dict[str, torch.Tensor]]


def types() -> list[str]:
    """Every model type that has a base model."""
    return sorted(MODEL_MAPPING_NAMES)


def build(kind: str) -> Tiny | None:
    """The type `kind`, small; None where no small config of it builds and runs."""
    for fields in ({**FIELDS, **OF_TYPE.get(kind, {})}, SHALLOW, {"use_cache": False}):
        model = _model(kind, fields)
        if model is None:
            continue
        for inputs in _inputs(model, batch=2, length=12):
            if _runs(model, inputs):
                return Tiny(model, inputs, list(_others(model, inputs)))
    return None


def _model(kind: str, fields: dict[str, Any]) -> nn.Module | None:
    try:
        config = transformers.AutoConfig.for_model(kind)
        _shrink(config, fields)
        given = {k: v for k, v in config.to_dict().items() if k not in DERIVED}
        config = type(config).from_dict(given)
        found = MODEL_MAPPING[type(config)]
        cls = found[0] if isinstance(found, tuple | list) else found
        with torch.device("meta"):
            size = sum(p.numel() for p in cls(config).parameters())
        if size > MOST_PARAMETERS:
            return None
        torch.manual_seed(0)
        return cls(config).eval()
    except Exception:  # the next way to make it small is tried
        return None


def _shrink(config: Any, fields: dict[str, Any]) -> None:
    layers = {v for k, v in vars(config).items() if "layer" in k and type(v) is int and v > 2}
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shrink(value, fields)
        elif name in fields and type(fields[name]) is type(value):
            setattr(config, name, fields[name])
        elif name in PER_STAGE and fields is not SHALLOW and isinstance(value, list):
            setattr(config, name, [PER_STAGE[name] * (i + 1) for i in range(len(value))])
        elif isinstance(value, list) and len(value) in layers:  # one entry for each layer
            kinds = [v for i, v in enumerate(value) if v not in value[:i]]
            setattr(config, name, (kinds + kinds)[:2])
    if getattr(config, "qk_rope_head_dim", None) == 8 and hasattr(config, "head_dim"):
        config.head_dim = 8  # the part that is rotated
    config._attn_implementation = "eager"


def _inputs(model: nn.Module, batch: int, length: int) -> Iterator[dict[str, torch.Tensor]]:
    known = Signature.of(model).names
    main = str(getattr(model, "main_input_name", "input_ids"))
    sets = [s for s in INPUT_SETS if s[0] == main] + [s for s in INPUT_SETS if s[0] != main]
    for names in sets:
        if all(name in known for name in names):
            yield {name: _make(model, name, batch, length) for name in names}


def _field(model: nn.Module, name: str, default: int) -> int:
    configs = [model.config, *(v for v in vars(model.config).values() if hasattr(v, "to_dict"))]
    for config in configs:
        value = getattr(config, name, None)
        value = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(value, int):
            return value
    return default


def _make(model: nn.Module, name: str, batch: int, length: int) -> torch.Tensor:
    if name.endswith("ids"):
        return torch.randint(5, max(_field(model, "vocab_size", VOCABULARY), 6), (batch, length))
    if name == "attention_mask":
        return torch.ones(batch, length, dtype=torch.long)
    if name == "pixel_values":
        size = _field(model, "image_size", 32)
        return torch.randn(batch, _field(model, "num_channels", 3), size, size)
    if name == "input_values":
        return torch.randn(batch, 400 * length)
    if name == "input_features":
        frames = 2 * _field(model, "max_source_positions", 100)
        return torch.randn(batch, _field(model, "num_mel_bins", 80), frames)
    return torch.randn(batch, length, _field(model, "hidden_size", WIDTH))


def _others(model: nn.Module, inputs: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs of other sizes, at which the model itself runs."""
    for batch, length in ((3, 9), (1, 20), (3, 12)):
        made = {name: _make(model, name, batch, length) for name in inputs}
        if _runs(model, made):
            yield made


def _runs(model: nn.Module, inputs: dict[str, Any]) -> bool:
    try:
        with torch.no_grad():
            model(**inputs)
    except Exception:  # then these are not inputs of this model
        return False
    return True
