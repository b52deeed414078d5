"""Small, randomly initialised models of many architectures, each with inputs of two shapes.

To try another model, add a row to `ZOO`: a name and a function that builds a `Case`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

TEXT = {"vocab_size": 99, "max_position_embeddings": 64}
WIDTH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
IMAGE = {"image_size": 32, "patch_size": 8, "num_channels": 3}


@dataclass(frozen=True)
class Case:
    """A model with inputs at the traced shape and at another one."""

    model: nn.Module
    inputs: dict[str, Any]
    other_inputs: dict[str, Any]
    hf_input_names: list[str] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def ids(batch: int, length: int, high: int = 99) -> torch.Tensor:
    return torch.randint(5, high, (batch, length))


def mask(batch: int, length: int) -> torch.Tensor:
    ones = torch.ones(batch, length, dtype=torch.long)
    ones[0, length - 2 :] = 0  # right padding in one row
    return ones


def text_inputs(names: list[str], batch: int, length: int) -> dict[str, torch.Tensor]:
    makers = {
        "input_ids": lambda: ids(batch, length),
        "decoder_input_ids": lambda: ids(batch, length - 3),
        "attention_mask": lambda: mask(batch, length),
        "token_type_ids": lambda: torch.randint(0, 2, (batch, length)),
        "labels": lambda: torch.randint(0, 2, (batch,)),
        "token_labels": lambda: ids(batch, length),
        "decoder_labels": lambda: ids(batch, length - 3),
        "start_positions": lambda: torch.randint(0, length, (batch,)),
        "end_positions": lambda: torch.randint(0, length, (batch,)),
    }
    return {_input_name(name): makers[name]() for name in names}


def _input_name(name: str) -> str:
    return "labels" if name.endswith("_labels") else name


def build(cls: str, config: Any, attention: str) -> nn.Module:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config._attn_implementation = attention
    return getattr(transformers, cls)(config).eval()


def text(cls: str, config: str, names: str, attention: str = "eager", **fields: Any) -> Case:
    settings = getattr(transformers, config)(**fields)
    settings.use_cache = False
    wanted = names.split()
    model = build(cls, settings, attention)
    return Case(
        model,
        text_inputs(wanted, 2, 12),
        text_inputs(wanted, 3, 9),
        [_input_name(n) for n in wanted],
    )


def image(cls: str, config: str, size: int = 32, attention: str = "eager", **fields: Any) -> Case:
    model = build(cls, getattr(transformers, config)(**fields), attention)
    shapes = [(2, 3, size, size), (3, 3, size, size)]
    first, second = ({"pixel_values": torch.randn(s)} for s in shapes)
    return Case(model, first, second, ["pixel_values"])


def plain(build_model: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Case:
    torch.manual_seed(0)
    first, second = ({"x": torch.randn(s)} for s in shapes)
    return Case(build_model().eval(), first, second)


def audio() -> Case:
    config = transformers.Wav2Vec2Config(
        vocab_size=32,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
        apply_spec_augment=False,
        layerdrop=0.0,
        **WIDTH,
    )
    model = build("Wav2Vec2ForCTC", config, "eager")
    first, second = ({"input_values": torch.randn(s)} for s in ((2, 800), (3, 1000)))
    return Case(model, first, second, ["input_values"])


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.relu(self.fc1(torch.flatten(x, start_dim=1))))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = self.pool(torch.relu(self.bn2(self.conv2(x))))
        return self.fc(x.view(x.size(0), -1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
            for _ in range(2)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(dim=(2, 3)))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, dropout=0.1)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(x + attended)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder, self.fc = nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, (last, _) = self.lstm(x)
        return self.fc(hidden[:, -1]) + last.sum(dim=(0, 2), keepdim=False)[:, None]


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.fc1(x), p=0.3, training=self.training)
        if self.training:
            x = F.dropout(x, 0.2)
        return self.fc2(x)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.out.weight = self.fc.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.fc(F.gelu(self.fc(x)))))


class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.fc(x)
        return {"logits": y, "parts": (y.softmax(-1), [y.argmax(-1)]), "size": x.shape[0]}


class TupleOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 12)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c = self.fc(x).chunk(3, dim=-1)
        values, indices = torch.max(a, dim=-1)
        return values, indices, b * c


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).clone()
        y[:, : x.shape[1] // 2] = 0.0
        y.mul_(2).add_(x)
        z = y.view(x.size(0), -1, 4)
        z += 1
        return y


BERT = {**TEXT, **WIDTH}
LLAMA = {**BERT, "num_key_value_heads": 2}
SMALL = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "decoder_ffn_dim": 48}
BART = {
    **TEXT,
    **SMALL,
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
SEQUENCE = "input_ids attention_mask"

ZOO: dict[str, Callable[[], Case]] = {
    "BERT classification": lambda: text(
        "BertForSequenceClassification", "BertConfig", SEQUENCE, **BERT
    ),
    "BERT classification, labels": lambda: text(
        "BertForSequenceClassification", "BertConfig", f"{SEQUENCE} labels", **BERT
    ),
    "BERT classification, no mask": lambda: text(
        "BertForSequenceClassification", "BertConfig", "input_ids", **BERT
    ),
    "BERT classification, sdpa": lambda: text(
        "BertForSequenceClassification", "BertConfig", SEQUENCE, "sdpa", **BERT
    ),
    "BERT masked LM": lambda: text(
        "BertForMaskedLM", "BertConfig", f"{SEQUENCE} token_labels", **BERT
    ),
    "BERT question answering": lambda: text(
        "BertForQuestionAnswering",
        "BertConfig",
        f"{SEQUENCE} token_type_ids start_positions end_positions",
        **BERT,
    ),
    "RoBERTa": lambda: text("RobertaForSequenceClassification", "RobertaConfig", SEQUENCE, **BERT),
    "RoBERTa, sdpa": lambda: text(
        "RobertaForSequenceClassification", "RobertaConfig", SEQUENCE, "sdpa", **BERT
    ),
    "DistilBERT": lambda: text(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        f"{SEQUENCE} labels",
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=48,
        **TEXT,
    ),
    "ALBERT": lambda: text(
        "AlbertForSequenceClassification", "AlbertConfig", SEQUENCE, embedding_size=16, **BERT
    ),
    "DeBERTa-v2": lambda: text(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        SEQUENCE,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=16,
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        **BERT,
    ),
    "GPT-2": lambda: text(
        "GPT2LMHeadModel",
        "GPT2Config",
        f"{SEQUENCE} token_labels",
        vocab_size=99,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
    ),
    "GPT-2, sdpa": lambda: text(
        "GPT2LMHeadModel",
        "GPT2Config",
        SEQUENCE,
        "sdpa",
        vocab_size=99,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
    ),
    "OPT": lambda: text(
        "OPTForCausalLM",
        "OPTConfig",
        SEQUENCE,
        vocab_size=99,
        max_position_embeddings=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        word_embed_proj_dim=32,
        layerdrop=0.0,
    ),
    "Llama": lambda: text("LlamaForCausalLM", "LlamaConfig", f"{SEQUENCE} token_labels", **LLAMA),
    "Llama, sdpa": lambda: text("LlamaForCausalLM", "LlamaConfig", SEQUENCE, "sdpa", **LLAMA),
    "Mistral": lambda: text(
        "MistralForCausalLM", "MistralConfig", SEQUENCE, sliding_window=6, **LLAMA
    ),
    "Mistral, sdpa": lambda: text(
        "MistralForCausalLM", "MistralConfig", "input_ids", "sdpa", sliding_window=6, **LLAMA
    ),
    "Qwen2": lambda: text("Qwen2ForCausalLM", "Qwen2Config", SEQUENCE, **LLAMA),
    "Qwen3": lambda: text("Qwen3ForCausalLM", "Qwen3Config", SEQUENCE, head_dim=8, **LLAMA),
    "T5": lambda: text(
        "T5ForConditionalGeneration",
        "T5Config",
        f"{SEQUENCE} decoder_input_ids",
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
    ),
    "BART": lambda: text(
        "BartForConditionalGeneration", "BartConfig", f"{SEQUENCE} decoder_labels", **BART
    ),
    "BART, sdpa": lambda: text(
        "BartForConditionalGeneration",
        "BartConfig",
        f"{SEQUENCE} decoder_input_ids",
        "sdpa",
        **BART,
    ),
    "ViT": lambda: image("ViTForImageClassification", "ViTConfig", **WIDTH, **IMAGE),
    "ViT, sdpa": lambda: image(
        "ViTForImageClassification", "ViTConfig", attention="sdpa", **WIDTH, **IMAGE
    ),
    "DeiT": lambda: image("DeiTForImageClassification", "DeiTConfig", **WIDTH, **IMAGE),
    "Swin": lambda: image(
        "SwinForImageClassification",
        "SwinConfig",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "ConvNeXt": lambda: image(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 2, 1],
        drop_path_rate=0.1,
    ),
    "ResNet": lambda: image(
        "ResNetForImageClassification",
        "ResNetConfig",
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
    ),
    "Wav2Vec2": audio,
    "Mixtral": lambda: text(
        "MixtralForCausalLM",
        "MixtralConfig",
        SEQUENCE,
        num_local_experts=4,
        num_experts_per_tok=2,
        **LLAMA,
    ),
    "MLP": lambda: plain(MLP, (2, 4, 4), (5, 4, 4)),
    "CNN with batch norm": lambda: plain(CNN, (2, 3, 16, 16), (3, 3, 20, 24)),
    "residual net": lambda: plain(Residual, (2, 3, 8, 8), (3, 3, 12, 10)),
    "MultiheadAttention": lambda: plain(SelfAttention, (2, 6, 16), (3, 9, 16)),
    "TransformerEncoder": lambda: plain(Encoder, (2, 6, 16), (3, 9, 16)),
    "LSTM": lambda: plain(Recurrent, (2, 6, 8), (3, 9, 8)),
    "functional dropout": lambda: plain(FunctionalDropout, (2, 16), (3, 5, 16)),
    "shared modules": lambda: plain(Shared, (2, 16), (3, 16)),
    "dict output": lambda: plain(DictOutput, (2, 16), (3, 16)),
    "tuple output": lambda: plain(TupleOutput, (2, 16), (3, 16)),
    "in-place": lambda: plain(InPlace, (2, 16), (3, 16)),
}


def one_of_each_kind() -> list[Any]:
    """Names to parametrise by: variants of a model ("BART, sdpa") are tried in `make slow`."""
    import pytest

    return [pytest.param(n, marks=pytest.mark.slow) if ", " in n else n for n in ZOO]


@functools.cache
def case(name: str) -> Case:
    """The case `name`, built once."""
    return ZOO[name]()
