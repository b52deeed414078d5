"""The transformers that `hardware_transformer.py` takes to RTL, with attention written out."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, features) as (batch, heads, tokens, features of a head)."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Self-attention and two linear layers, each behind a norm and beside a residual."""

    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (size // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._attention(self.norm1(x)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def _attention(self, x: Tensor) -> Tensor:
        q, k, v = (split(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class DigitsVit(nn.Module):
    """16 patches of 2 x 2 pixels, position codes, two layers, the mean of the tokens."""

    def __init__(self, size: int = 32, heads: int = 2, inner: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, size, 2, stride=2)
        self.positions = nn.Parameter(0.1 * torch.randn(1, 16, size))
        self.layers = nn.Sequential(*(EncoderLayer(size, heads, inner) for _ in range(2)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.layers(x)).mean(1))


class BertLayer(nn.Module):
    """A layer of BERT, of the parts of transformers' own."""

    def __init__(self, layer: Any, heads: int) -> None:
        super().__init__()
        attention = layer.attention
        self.heads = heads
        self.query, self.key = attention.self.query, attention.self.key
        self.value, self.out = attention.self.value, attention.output.dense
        self.norm1, self.norm2 = attention.output.LayerNorm, layer.output.LayerNorm
        self.up, self.down = layer.intermediate.dense, layer.output.dense
        self.scale = (self.query.out_features // heads) ** -0.5

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        q, k, v = (split(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) * self.scale
        weights = torch.softmax(scores.masked_fill(is_padding[:, None, None], -math.inf), dim=-1)
        x = self.norm1(x + self.out((weights @ v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Reviews of `length` ids, and which are padding, to the scores of two classes.

    The parts are those of transformers' `BertForSequenceClassification`. Its own graph makes the
    mask by comparing numbers of places; here the mask is an input. Position and type, which are the
    same for all reviews, are one table.
    """

    positions: Tensor

    def __init__(self, model: Any, length: int) -> None:
        super().__init__()
        embeddings = model.bert.embeddings
        self.words, self.norm = embeddings.word_embeddings, embeddings.LayerNorm
        places = embeddings.position_embeddings.weight[:length]
        self.positions = nn.Parameter((places + embeddings.token_type_embeddings.weight[0])[None])
        heads = model.config.num_attention_heads
        self.layers = nn.ModuleList(BertLayer(each, heads) for each in model.bert.encoder.layer)
        self.pooler, self.classifier = model.bert.pooler.dense, model.classifier

    def forward(self, ids: Tensor, is_padding: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.positions)
        for layer in self.layers:
            x = layer(x, is_padding)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))
