"""Small, randomly initialised language models that generate, with prompts of unequal lengths.

To try another family, add a row to `FAMILIES`: the class, and the fields of its config.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers

from chop import MaseGraph

VOCABULARY, LENGTH, NEW = 96, 11, 12
TOKENS = {"bos_token_id": 1, "eos_token_id": 95, "pad_token_id": 0}
DECODER = {
    **TOKENS,
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
GROUPED = {**DECODER, "num_key_value_heads": 2}
PAIR = {
    **TOKENS,
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "decoder_start_token_id": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**TOKENS, "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4},
    ),
    "OPT": ("OPTForCausalLM", "OPTConfig", {**DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 6}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "Gemma 2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GROUPED, "head_dim": 8, "sliding_window": 6},
    ),
    "Gemma 3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **GROUPED,
            "head_dim": 8,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", DECODER),
    "Mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            **TOKENS,
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "BART": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**PAIR, "max_position_embeddings": 128, "forced_eos_token_id": None},
    ),
    "Whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **PAIR,
            "max_source_positions": 20,
            "max_target_positions": 64,
            "num_mel_bins": 8,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
}
PAIRS = ("T5", "BART", "Whisper")
"""Encoder-decoders."""


def made(name: str) -> Any:
    """A new model of the family, whose tokens vary: its weights are larger than at birth."""
    torch.manual_seed(0)
    model_class, config_class, fields = FAMILIES[name]
    config = getattr(transformers, config_class)(**fields)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


@functools.cache
def model(name: str) -> Any:
    """The model of the family; it is not to be changed."""
    return made(name)


@functools.cache
def graph(name: str) -> MaseGraph:
    """Its graph, with a cache; it is not to be changed."""
    return MaseGraph(model(name), cache=True)


def prompts(name: str, *, side: str = "left") -> dict[str, torch.Tensor]:
    """Three prompts of unequal lengths, padded; a sound is never padded."""
    draw = torch.Generator().manual_seed(1)
    if name == "Whisper":
        return {"input_features": torch.randn(3, 8, 40, generator=draw)}
    tokens = torch.randint(3, 90, (3, LENGTH), generator=draw)
    mask = torch.ones_like(tokens)
    for row, missing in ((1, 4), (2, 7)):
        padding = slice(0, missing) if side == "left" else slice(LENGTH - missing, None)
        tokens[row, padding] = mask[row, padding] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def tokens(
    generate: Callable[..., torch.Tensor], given: dict[str, torch.Tensor], **options: Any
) -> torch.Tensor:
    """What `generate` gives from a fixed random state; greedy where nothing else is asked."""
    torch.manual_seed(5)
    asked = {"max_new_tokens": NEW, "do_sample": False, **options}
    return generate(**given, **asked)


def agree(name: str, given: dict[str, torch.Tensor], **options: Any) -> bool:
    """Whether the graph's tokens are those of the eager model's own `generate`."""
    expected = tokens(model(name).generate, given, **options)
    return torch.equal(tokens(graph(name).generate, given, **options), expected)
