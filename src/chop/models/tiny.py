"""Hugging Face architectures at a size that trains on a CPU in seconds, built from a config."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from chop.errors import ConfigError
from chop.models.reference_models import reference_model
from chop.registry import suggest

WIDTH = {"hidden_size": 32, "intermediate_size": 64}
WIDTH |= {"num_hidden_layers": 2, "num_attention_heads": 2}
NOT_STORED = ("num_labels", "attn_implementation")
"""Settings that a config accepts but does not list."""


@reference_model("tiny_bert", reads="text")
def tiny_bert(vocab_size: int = 64, num_labels: int = 2, **config: Any) -> nn.Module:
    """Return BERT with a sequence classifier: 2 layers of width 32."""
    sizes = {"vocab_size": vocab_size, "num_labels": num_labels, "max_position_embeddings": 64}
    settings = _config("tiny_bert", "bert", {**WIDTH, **sizes, **config})
    model: nn.Module = AutoModelForSequenceClassification.from_config(settings)  # type: ignore[no-untyped-call]
    return model


@reference_model("tiny_vit", reads="images")
def tiny_vit(
    image_size: int = 8, in_channels: int = 1, num_labels: int = 10, **config: Any
) -> nn.Module:
    """Return a vision transformer on patches of 2 x 2 pixels: 2 layers of width 32."""
    sizes = {"image_size": image_size, "num_channels": in_channels, "num_labels": num_labels}
    settings = _config("tiny_vit", "vit", {**WIDTH, **sizes, "patch_size": 2, **config})
    model: nn.Module = AutoModelForImageClassification.from_config(settings)  # type: ignore[no-untyped-call]
    return model


@reference_model("tiny_llama", reads="text")
def tiny_llama(vocab_size: int = 256, **config: Any) -> nn.Module:
    """Return Llama, a predictor of tokens (or bytes): 2 layers of width 32."""
    if "num_labels" in config:
        raise ConfigError(
            "tiny_llama: unknown option 'num_labels': it predicts tokens, no classes."
        )
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    sizes = {"vocab_size": vocab_size, "max_position_embeddings": 512}
    settings = _config("tiny_llama", "llama", {**WIDTH, **tokens, **sizes, **config})
    model: nn.Module = AutoModelForCausalLM.from_config(settings)  # type: ignore[no-untyped-call]
    return model


def _config(name: str, kind: str, settings: dict[str, Any]) -> Any:
    """Return the config of transformers, which by itself ignores unknown settings."""
    allowed = sorted(k for k in AutoConfig.for_model(kind).to_dict() if not k.startswith("_"))
    for key in settings:
        if key not in allowed and key not in NOT_STORED:
            raise ConfigError(f"{name}: unknown option '{key}'. {suggest(key, allowed)}")
    return AutoConfig.for_model(kind, **settings)
