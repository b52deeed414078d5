"""Training steps of small models whose memory is predicted and measured."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from distributed.models import two
from passes.graphs import annotate
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from chop import MaseGraph
from chop.distributed.split_plan import make_split
from chop.distributed.verify_plan import SplitRun

ROWS, LENGTH, WORDS, WIDTH = 8, 32, 128, 64
TRANSFORMER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
}


class Blocks(nn.Module):
    """Three residual blocks of linear layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 4 * WIDTH),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Linear(4 * WIDTH, WIDTH),
            )
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def _text(model: nn.Module) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return model, {"input_ids": torch.randint(0, WORDS, (ROWS, LENGTH))}


def _with(attention: str, config: Any) -> Any:
    config._attn_implementation = attention
    return config


def _bert(attention: str) -> nn.Module:
    config = BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **TRANSFORMER)
    return BertForSequenceClassification(_with(attention, config))


def _gpt2() -> nn.Module:
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": LENGTH}
    return GPT2LMHeadModel(_with("eager", GPT2Config(vocab_size=WORDS, use_cache=False, **sizes)))


def _llama(attention: str) -> nn.Module:
    more = {"num_key_value_heads": 4, "max_position_embeddings": LENGTH, "use_cache": False}
    return LlamaForCausalLM(_with(attention, LlamaConfig(vocab_size=WORDS, **more, **TRANSFORMER)))


def _vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = ViTConfig(image_size=16, patch_size=4, num_labels=4, **TRANSFORMER)
    return ViTForImageClassification(_with("sdpa", config)), {
        "pixel_values": torch.randn(ROWS, 3, 16, 16)
    }


MODELS: dict[str, Any] = {
    "mlp": lambda: (Blocks(), {"x": torch.randn(16 * ROWS, WIDTH)}),
    "bert": lambda: _text(_bert("eager")),
    "bert, fused attention": lambda: _text(_bert("sdpa")),
    "gpt2": lambda: _text(_gpt2()),
    "llama": lambda: _text(_llama("eager")),
    "llama, fused attention": lambda: _text(_llama("sdpa")),
    "vit": _vit,
}
SPLITS: dict[str, tuple[tuple[int, ...], str, float | None]] = {
    "1, best": ((1,), "best", None),
    "2, ddp": ((2,), "ddp", None),
    "2, fsdp": ((2,), "fsdp", None),
    "2, megatron": ((2,), "megatron", None),
    "2, best": ((2,), "best", None),
    "4, fsdp": ((4,), "fsdp", None),
    "2x2, megatron": ((2, 2), "megatron", None),
    "2x2, best": ((2, 2), "best", None),
    "1, best in less": ((1,), "best", 0.85),
    "2, best in less": ((2,), "best", 0.85),
}
"""Name -> mesh, plan, and memory as a share of what the plan without a limit needs."""


@functools.cache
def _graph(model: str) -> tuple[MaseGraph, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    built, inputs = MODELS[model]()
    if isinstance(built, Blocks):
        graph = MaseGraph(built.eval(), dummy_in=inputs)
    else:
        graph = MaseGraph(built.eval(), hf_input_names=list(inputs))
    return annotate(graph, inputs), inputs


def memory_job(model: str, split: str) -> SplitRun:
    """One training step to run."""
    shape, kind, share = SPLITS[split]
    graph, inputs = _graph(model)
    graph = copy.deepcopy(graph)
    annotate(graph, inputs)
    plan = make_split(graph, two(shape=shape), kind=kind)
    if share is not None:
        limit = round(share * plan.plan.cost.memory_bytes)
        plan = make_split(graph, two(shape=shape, memory=limit), kind=kind)
    return SplitRun(graph, plan, inputs)
