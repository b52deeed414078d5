"""Small models, one of each kind, on which sequences of passes are tried.

To try another, add a row to `MODELS`: a name and a function that builds a `zoo.Case`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
import zoo
from torch import nn

from chop import MaseGraph

ONE = {**zoo.BERT, "num_hidden_layers": 1}
LLAMA = {**zoo.LLAMA, "num_hidden_layers": 1}
SEQUENCE = zoo.SEQUENCE


class Tied(nn.Module):
    """A language model in little: its head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(20, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.fc(self.table(x))))


def _tied() -> zoo.Case:
    torch.manual_seed(0)
    first, second = ({"x": zoo.ids(b, n, 20)} for b, n in ((2, 5), (3, 4)))
    return zoo.Case(Tied().eval(), first, second)


def _text(cls: str, config: str, names: str = SEQUENCE, **fields: Any) -> zoo.Case:
    return zoo.text(cls, config, names, **fields)


MODELS: dict[str, Callable[[], zoo.Case]] = {
    "MLP": lambda: zoo.plain(zoo.MLP, (2, 4, 4), (5, 4, 4)),
    "CNN with batch norm": lambda: zoo.plain(zoo.CNN, (2, 3, 8, 8), (3, 3, 10, 12)),
    "tied language model": _tied,
    "BERT": lambda: _text("BertForMaskedLM", "BertConfig", **ONE),
    "GPT-2": lambda: _text(
        "GPT2LMHeadModel",
        "GPT2Config",
        vocab_size=99,
        n_positions=64,
        n_embd=32,
        n_layer=1,
        n_head=4,
    ),
    "T5": lambda: _text(
        "T5ForConditionalGeneration",
        "T5Config",
        f"{SEQUENCE} decoder_input_ids",
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_heads=4,
    ),
    "Llama": lambda: _text("LlamaForCausalLM", "LlamaConfig", **LLAMA),
    "Mixtral": lambda: _text(
        "MixtralForCausalLM",
        "MixtralConfig",
        num_local_experts=4,
        num_experts_per_tok=2,
        **LLAMA,
    ),
}


@functools.cache
def _traced(name: str) -> tuple[MaseGraph, dict[str, Any]]:
    case = MODELS[name]()
    return MaseGraph(case.model, case.hf_input_names, case.inputs), case.inputs


def graph_and_inputs(name: str) -> tuple[MaseGraph, dict[str, Any]]:
    """A graph of the model `name` of its own, and its inputs."""
    graph, inputs = _traced(name)
    return copy.deepcopy(graph), inputs
