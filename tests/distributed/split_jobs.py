"""Training steps of six kinds of models, changed in five ways, split in several ways."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from distributed.models import MLP, two
from passes.graphs import annotate
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

import chop.passes as passes
from chop import MaseGraph
from chop.distributed.graph_parts import untied
from chop.distributed.split_plan import make_split
from chop.distributed.verify_plan import SplitRun
from chop.ir.expert_mixtures import mixture_ops

ROWS, LENGTH, WORDS = 8, 8, 64
BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
LLAMA: dict[str, Any] = {
    **BERT,
    "vocab_size": WORDS,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
    "use_cache": False,
}


class DeepMLP(nn.Module):
    """Two blocks, so that a pipeline can be cut between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = MLP(), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def _text(model: nn.Module) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return model, {"input_ids": torch.randint(0, WORDS, (ROWS, LENGTH))}


EXPERTS = "mixtral_experts"
"""Mixtral with each mixture of experts as one layer, so that its experts can be split."""


def _eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


MODELS: dict[str, Any] = {
    "mlp": lambda: (DeepMLP(), {"x": torch.randn(ROWS, 16)}),
    "bert": lambda: _text(
        BertForSequenceClassification(
            _eager(BertConfig(vocab_size=WORDS, max_position_embeddings=32, **BERT))
        )
    ),
    "gpt2": lambda: _text(
        GPT2LMHeadModel(
            _eager(
                GPT2Config(
                    vocab_size=WORDS,
                    n_embd=32,
                    n_layer=2,
                    n_head=4,
                    n_positions=32,
                    use_cache=False,
                )
            )
        )
    ),
    "llama": lambda: _text(LlamaForCausalLM(_eager(LlamaConfig(**LLAMA)))),
    "mixtral": lambda: _text(
        MixtralForCausalLM(
            _eager(MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **LLAMA))
        )
    ),
    EXPERTS: lambda: MODELS["mixtral"](),
    "vit": lambda: (
        ViTForImageClassification(
            _eager(ViTConfig(image_size=8, patch_size=4, num_labels=4, **BERT))
        ),
        {"pixel_values": torch.randn(ROWS, 3, 8, 8)},
    ),
}
MXINT8 = {"by": "type", "linear": {"config": {"name": "mxint8/16"}}}
PRUNED = {"weight": {"sparsity": 0.5, "scope": "local"}}
CHANGES: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "float": [],
    "mxint8": [(passes.quantize_transform_pass, MXINT8)],
    "packed mxint4": [(passes.pack_weights_transform_pass, {"format": "mxint4", "group_size": 16})],
    "lora": [(passes.insert_lora_adapter_transform_pass, {"rank": 4})],
    "pruned": [(passes.prune_transform_pass, PRUNED)],
}
SPLITS: dict[str, tuple[tuple[int, ...], int, str]] = {
    "fsdp 2": ((2,), 1, "fsdp"),
    "pipeline 2": ((1,), 2, "best"),
    "pipeline 2 of fsdp 2": ((2,), 2, "fsdp"),
    "pipeline 2 of megatron 2": ((2,), 2, "megatron"),
    "megatron 2 and fsdp 2": ((2, 2), 1, "megatron"),
    "fsdp 4": ((4,), 1, "fsdp"),
    "pipeline 2 of megatron 2x2": ((2, 2), 2, "megatron"),
    "pipeline 2 of fsdp 4": ((4,), 2, "fsdp"),
    "fsdp 8": ((8,), 1, "fsdp"),
}
"""Name -> mesh of a stage, stages, plan."""
MICRO_BATCHES = 2


@functools.cache
def changed(model: str, change: str) -> tuple[MaseGraph, dict[str, torch.Tensor]]:
    """A graph of a model after the passes of a change, and inputs."""
    torch.manual_seed(0)
    built, inputs = MODELS[model]()
    if model == "mlp":
        graph = MaseGraph(built.eval(), dummy_in=inputs)
    else:
        ops = mixture_ops(built) if model == EXPERTS else None
        graph = MaseGraph(built.eval(), hf_input_names=list(inputs), custom_ops=ops)
    annotate(graph, inputs)
    for each, arguments in CHANGES[change]:
        graph, _ = each(graph, arguments)
    return graph, inputs


def split_job(model: str, change: str, split: str) -> SplitRun:
    """One training step to run; the batch of a pipeline has two micro-batches."""
    shape, stages, kind = SPLITS[split]
    graph, inputs = changed(model, change)
    graph = copy.deepcopy(graph)
    count = MICRO_BATCHES if stages > 1 else 1
    copies = untied(graph.model) if stages > 1 else {}
    annotate(graph, {name: value[: ROWS // count] for name, value in inputs.items()})
    plan = make_split(
        graph, two(shape=shape), stages=stages, micro_batches=count, kind=kind, copies=copies
    )
    return SplitRun(graph, plan, inputs)
