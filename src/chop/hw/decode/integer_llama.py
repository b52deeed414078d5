"""Decode step of an integer Llama in PyTorch: the definition that the engine computes.

All products and sums are exact integers. Each result is rounded half to even and saturated to 16
bits, or to the width of the residual stream if it is added there. Norm, softmax and SiLU are those
of `arithmetic = "integer"`. The softmax is not rounded by itself: exponentials weigh the values,
and the sum is multiplied by the reciprocal once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.hw.decode.block_codes import WIDTH, BlockCodes, cast, multiply, vector_blocks
from chop.hw.decode.decode_model import ROTATION_FRAC, DecodeModel, LayerCodes, NormCodes
from chop.hw.decode.residual_norm import normalise
from chop.nn.quantizers.arithmetic.function import line_codes
from chop.nn.quantizers.arithmetic.integer_softmax import exponential
from chop.nn.quantizers.arithmetic.norm import Z_FRAC
from chop.nn.quantizers.arithmetic.tables import RECIPROCAL_FRAC, reciprocal


@dataclass
class LayerCache:
    """MXINT keys and values of a layer, as (positions, key heads, …)."""

    keys: BlockCodes
    values: BlockCodes

    def append(self, key: BlockCodes, value: BlockCodes) -> None:
        """Add one position."""
        self.keys, self.values = _joined(self.keys, key), _joined(self.values, value)


def _joined(rows: BlockCodes, row: BlockCodes) -> BlockCodes:
    return BlockCodes(
        torch.cat((rows.mantissas, row.mantissas[None])),
        torch.cat((rows.exponents, row.exponents[None])),
    )


@dataclass(frozen=True)
class GreedyTokens:
    """Tokens that follow a prompt, and the logit codes (tokens, vocab) that chose them."""

    tokens: list[int]
    logits: Tensor


class IntegerLlama:
    """Decoder with a growing cache. `step` computes one token; `generate` follows a prompt."""

    def __init__(self, model: DecodeModel) -> None:
        self.model = model
        empty = torch.zeros(0, model.shape.kv_heads, model.shape.head_dim, dtype=torch.int64)
        self.caches = [self.cache_of(empty, empty) for _ in model.layers]

    def cache_of(self, keys: Tensor, values: Tensor) -> LayerCache:
        """Return the cache of a layer from codes (positions, key heads, head size)."""
        return LayerCache(self._cached(keys), self._cached(values))

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return len(self.caches[0].keys.exponents)

    def step(self, token: int) -> Tensor:
        """Return the logit codes after `token`; its key and value enter the cache."""
        model, position = self.model, self.length
        if position >= model.options.max_length:
            raise ConfigError(
                f"decode: the cache holds {model.options.max_length} tokens, and it is full."
            )
        if not 0 <= token < model.shape.vocab:
            raise ConfigError(
                f"decode: token {token} is not in the vocabulary of {model.shape.vocab}."
            )
        hidden = model.embedding[token]
        for layer, cache in zip(model.layers, self.caches, strict=True):
            hidden = self._layer(layer, cache, hidden, model.rotations[position])
        x = self._norm(hidden, model.norm, model.fracs["x"])
        frac = model.fracs["x"] + model.head.frac_width
        return cast(multiply(model.head.blocks, x), frac - model.fracs["logits"])

    def _layer(
        self, layer: LayerCodes, cache: LayerCache, hidden: Tensor, rotation: Tensor
    ) -> Tensor:
        fracs = layer.fracs
        x = self._norm(hidden, layer.norm_1, fracs["x_1"])
        key = rotate(self._product(layer, "key", x, "x_1", fracs["key"]), rotation)
        value = self._product(layer, "value", x, "x_1", fracs["value"])
        query = rotate(self._product(layer, "query", x, "x_1", fracs["query"]), rotation)
        shape = (-1, self.model.shape.head_dim)
        cache.append(self._cached(key.reshape(shape)), self._cached(value.reshape(shape)))
        attended = self._attend(layer, cache, self._heads(query))
        hidden = self._add(layer, "output", attended, "attended", hidden)
        x = self._norm(hidden, layer.norm_2, fracs["x_2"])
        middle = self._blocks(self._gated(layer, x))
        return self._add(layer, "down", middle, "middle", hidden)

    def _add(
        self, layer: LayerCodes, name: str, x: BlockCodes, source: str, hidden: Tensor
    ) -> Tensor:
        """Return the residual stream with a product added."""
        width, frac = self.model.residual_width, self.model.fracs["hidden"]
        return cast(hidden + self._product(layer, name, x, source, frac, width), 0, width)

    def _norm(self, hidden: Tensor, weight: NormCodes, frac: int) -> BlockCodes:
        number, eps = self.model.hidden_format, self.model.shape.eps
        z = normalise(hidden, number, eps, self.model.guard)
        return self._blocks(cast(z * weight.codes, Z_FRAC + weight.frac_width - frac))

    def _product(
        self,
        layer: LayerCodes,
        name: str,
        x: BlockCodes,
        source: str,
        frac: int,
        width: int = WIDTH,
    ) -> Tensor:
        matrix = layer.matrices[name]
        exact = multiply(matrix.blocks, x)
        return cast(exact, layer.fracs[source] + matrix.frac_width - frac, width)

    def _gated(self, layer: LayerCodes, x: BlockCodes) -> Tensor:
        fracs, shared, lines = layer.fracs, self.model.fracs, self.model.silu
        gate = self._product(layer, "gate", x, "x_2", shared["gate"])
        up = self._product(layer, "up", x, "x_2", fracs["up"])
        silu = cast(line_codes(gate & 0xFFFF, lines), lines.frac_width - shared["gate"])
        return cast(silu * up, shared["gate"] + fracs["up"] - fracs["middle"])

    def _attend(self, layer: LayerCodes, cache: LayerCache, query: BlockCodes) -> BlockCodes:
        heads = [
            self._attend_head(layer, cache, query[head], head // self.model.shape.group)
            for head in range(self.model.shape.heads)
        ]
        return self._blocks(torch.cat(heads))

    def _attend_head(
        self, layer: LayerCodes, cache: LayerCache, query: BlockCodes, j: int
    ) -> Tensor:
        fracs, shared = layer.fracs, self.model.fracs
        scores = multiply(cache.keys[:, j], query)
        scores = cast(scores, fracs["query"] + fracs["key"] - shared["scores"])
        shares = exponential(scores.max() - scores, self.model.score_format)
        total = (shares[:, None] * cache.values[:, j].codes).sum(0) * reciprocal(shares.sum())
        return cast(total, RECIPROCAL_FRAC + fracs["value"] - fracs["attended"])

    def _heads(self, codes: Tensor) -> BlockCodes:
        return self._blocks(codes.reshape(-1, self.model.shape.head_dim))

    def _cached(self, codes: Tensor) -> BlockCodes:
        """Return keys or values in the format of the cache; numbers in it do not change."""
        return vector_blocks(codes, self.model.options.block, self.model.options.cache_width)

    def _blocks(self, codes: Tensor) -> BlockCodes:
        return vector_blocks(codes, self.model.options.block)


def rotate(codes: Tensor, rotation: Tensor) -> Tensor:
    """Rotate neighbouring elements of each head by the cosines and sines of one position."""
    first, second = codes.reshape(-1, len(rotation), 2).unbind(-1)
    cos, sin = rotation.unbind(-1)
    pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
    return cast(pairs.flatten(), ROTATION_FRAC)


def pick(logits: Tensor) -> int:
    """Return the first token with the largest logit."""
    return int((logits == logits.max()).nonzero()[0])


def generate(model: DecodeModel, prompt: Sequence[int], new_tokens: int) -> GreedyTokens:
    """Generate tokens greedily after `prompt`, with integers only."""
    check_request(model, prompt, new_tokens)
    llama = IntegerLlama(model)
    for token in prompt[:-1]:
        llama.step(token)
    tokens, logits = [], []
    token = prompt[-1]
    for _ in range(new_tokens):
        logits.append(llama.step(token))
        token = pick(logits[-1])
        tokens.append(token)
    return GreedyTokens(tokens, torch.stack(logits))


def check_request(model: DecodeModel, prompt: Sequence[int], new_tokens: int) -> None:
    """Raise if a prompt is empty or the cache is too short for it and the new tokens."""
    if not prompt or new_tokens < 1:
        raise ConfigError(
            f"decode: at least one prompt token and one new token, got {len(prompt)} and "
            f"{new_tokens}."
        )
    needed = len(prompt) + new_tokens - 1
    if needed > model.options.max_length:
        raise ConfigError(
            f"decode: {len(prompt)} prompt tokens and {new_tokens} new ones need a cache of "
            f"{needed} tokens. max_length is {model.options.max_length}."
        )
