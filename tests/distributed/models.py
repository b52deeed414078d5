"""Annotated graphs of small models, traced once, and plans made by hand for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from passes.graphs import annotate
from torch import nn

from chop import MaseGraph
from chop.distributed.mesh import Mesh
from chop.distributed.program import ProgramValue
from chop.distributed.strategies import Strategy

SLOW_DEVICES = {"latency": (1e-6,), "flops": 1e9, "memory_bandwidth": 1e10}
"""Arithmetic dear enough that splitting even a tiny model is worth its messages."""


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def two(**settings: Any) -> Mesh:
    """A mesh of two slow devices."""
    return Mesh(**{"shape": (2,), **SLOW_DEVICES, **settings})


class Losses(nn.Module):
    """Losses of the same logits with all kinds of settings; two labels are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 10)
        self.weighted = nn.CrossEntropyLoss(torch.rand(10) + 0.5, label_smoothing=0.1)
        self.register_buffer("factors", torch.rand(10) + 0.5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        logits = self.fc(x)
        plain = F.cross_entropy(logits, labels)
        total = F.cross_entropy(logits, labels, self.factors, reduction="sum")
        other = F.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=0.2)
        return [plain, self.weighted(logits, labels), total / 8, other]


@functools.cache
def losses() -> tuple[MaseGraph, dict[str, Any]]:
    torch.manual_seed(0)
    labels = torch.tensor([1, -100, 3, 4, 5, 6, 7, 9])
    inputs = {"x": torch.randn(8, 16), "labels": labels}
    return annotate(MaseGraph(Losses().eval(), dummy_in=inputs), inputs), inputs


@functools.cache
def mlp(batch: int = 8) -> tuple[MaseGraph, dict[str, Any]]:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(batch, 16)}
    return annotate(MaseGraph(MLP().eval(), dummy_in=inputs)), inputs


class Images(nn.Module):
    """Convolutions, poolings, and what puts dimensions together and takes them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.norm, self.fc = nn.GroupNorm(2, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(self.norm(self.down(x)), 2)
        x = torch.stack([self.up(x), self.up(x * 2)], dim=1).flip((0,))
        left, right = x.unbind(1)
        mixed = torch.where(left > right, left, right.round())
        spread = torch.movedim(mixed, 1, 3).var(2) + mixed.max(dim=2).values.transpose(1, 2)
        return self.fc(torch.cat([spread, spread.flip((1,))], dim=2))


@functools.cache
def images() -> tuple[MaseGraph, dict[str, Any]]:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(4, 4, 8, 8)}
    return annotate(MaseGraph(Images().eval(), dummy_in=inputs)), inputs


@functools.cache
def bert(
    layers: int = 2, batch: int = 4, cls: str = "BertForSequenceClassification"
) -> tuple[MaseGraph, dict[str, Any]]:
    """A tiny BERT with 4 heads, written-out attention, and inputs with labels and padding."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.BertConfig(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    config._attn_implementation = "eager"
    ids = torch.randint(0, 128, (batch, 16))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    labels = ids if "MaskedLM" in cls else torch.arange(batch) % 2
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    model = getattr(transformers, cls)(config).eval()
    graph = MaseGraph(model, hf_input_names=list(inputs))
    return annotate(graph, inputs), inputs


COLUMN = ("query", "key", "value", "intermediate_dense", "up")
ROW = ("attention_output_dense", "output_dense", "down")


PARAMETERS = (("weight", ROW, "S1"), ("weight", COLUMN, "S0"), ("bias", COLUMN, "S0"))


def megatron(value: ProgramValue) -> Strategy | None:
    """Columns of the first layer of each block, rows of the second; the first that fits."""
    name = value.name.removeprefix("parameter ").replace(".", "_")
    if value.is_parameter:
        for role, layers, layout in PARAMETERS:
            if name.endswith(tuple(f"{layer}_{role}" for layer in layers)):
                return _result(value, layout)
        return None
    for strategy, layers in (("row", ROW), ("column", COLUMN)):
        if name.endswith(layers) and value.op.name == "linear":
            return next(s for s in value.layouts(2) if s.name == strategy)
    return None


def _result(value: ProgramValue, layout: str) -> Strategy:
    return next(s for s in value.layouts(2) if s.result == layout)


def megatron_plan_pick() -> Callable[[ProgramValue], Strategy | None]:
    """`megatron`, with what lies between a column and a row layer following its operands."""
    split: dict[str, str] = {}

    def pick(value: ProgramValue) -> Strategy | None:
        chosen = megatron(value)
        if chosen is None and not value.is_parameter and value.op.name != "linear":
            reads = {r.operand: split[r.value] for r in value.references if r.value in split}
            fits = [
                s
                for s in value.layouts(2)
                if reads and all(s.operands.get(n, "R") == layout for n, layout in reads.items())
            ]
            chosen = fits[0] if fits else None
        if chosen is not None and chosen.result.startswith("S") and not value.is_parameter:
            split[value.name] = chosen.result
        return chosen

    return pick
