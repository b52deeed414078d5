"""Speculative decoding: the model checks a draft of several tokens in one step.

A step on a draft costs less than a step for each of its tokens, since the weights are read once.
The tokens are those of plain greedy decoding: a native step computes each token of a draft with the
bits that it has alone. Where steps run in PyTorch, tokens whose logits differ in the last bits may
change places. Drafts that are wrong cost time, so a gate decides when to use them
(`chop.serve.draft_gates`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from chop.actions.generation import Generated, bytes_of, cache_bytes
from chop.errors import ConfigError
from chop.ir import kv_cache
from chop.ir.graph import MaseGraph
from chop.ir.graph.generating_model import has_cache
from chop.serve.draft_gates import DraftGate, PauseGate, TrialGate
from chop.serve.sampling import Sampler, Sampling

MOST_DRAFTED = 15
"""Largest draft: with the last token, as many as a native step takes."""
LONGEST_MATCH, SHORTEST_MATCH = 3, 2
"""Last tokens that a prompt lookup searches for; a single token rarely has the same successors."""


class Drafter(Protocol):
    """Source of drafts; `gate` returns a new decision when to use them."""

    def gate(self) -> DraftGate:
        """Return a gate for one answer."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens that may follow `tokens`."""


class PromptLookup:
    """Drafts that repeat what followed the last tokens where they occurred before.

    >>> PromptLookup().propose([5, 6, 7, 8, 5, 6], 3)
    [7, 8, 5]
    """

    def gate(self) -> DraftGate:
        """Return a gate that tries lookups on generated tokens before a step takes one."""
        return TrialGate()

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return the tokens behind the latest occurrence of the longest match."""
        tokens = list(tokens)
        for size in range(min(LONGEST_MATCH, len(tokens) - 1), SHORTEST_MATCH - 1, -1):
            for start in range(len(tokens) - size - 1, -1, -1):
                if tokens[start : start + size] == tokens[-size:]:
                    return tokens[start + size : start + size + most]
        return []


class DraftModel:
    """Greedy drafts of a smaller model with the same vocabulary."""

    def __init__(self, graph: MaseGraph) -> None:
        check_speculation(graph)
        self._reader = _Reader(graph)

    def gate(self) -> DraftGate:
        """Return a gate that pauses the model while its drafts are wrong."""
        return PauseGate()

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return the most probable tokens one after the other."""
        draft: list[int] = []
        while len(draft) < most:
            draft.append(int(self._reader.logits([*tokens, *draft])[-1].argmax()))
        return draft


class _Reader:
    """Model with a cache of the tokens that it has read."""

    def __init__(self, graph: MaseGraph) -> None:
        self._model: Any = graph.as_transformers()
        self.cache = DynamicCache(config=self._model.config)
        self._read: list[int] = []

    def logits(self, tokens: Sequence[int], count: int = 1) -> Tensor:
        """Return the logits after each of the last `count` tokens; read only new tokens."""
        length = _common_length(self._read, tokens[:-count])
        if length < len(self._read):
            self.cache.crop(length - len(self._read))
        new = torch.tensor([tokens[length:]], device=self._model.device)
        self._read = list(tokens)
        output = self._model(
            input_ids=new, past_key_values=self.cache, use_cache=True,
            **({"logits_to_keep": 1} if count == 1 else {}),
        )  # fmt: skip
        last: Tensor = output.logits[0, -count:].float().cpu()
        return last


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens with which both begin.

    >>> _common_length([1, 2, 3], [1, 2, 4, 5]), _common_length([1], [1, 2])
    (2, 1)
    """
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(frozen=True)
class Speculated(Generated):
    """A run with drafts: `steps` after the prompt, and the tokens `drafted` and `accepted`."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def summary(self) -> str:
        """Return the numbers of the drafts as text."""
        share = self.accepted / max(self.drafted, 1)
        return (
            f"{self.accepted} of {self.drafted} drafted tokens accepted ({share:.0%}), "
            f"{self.new_tokens / max(self.steps, 1):.2f} tokens per step"
        )


def check_speculation(graph: MaseGraph) -> None:
    """Raise if a graph cannot check drafts: it needs a cache from which tokens can be removed."""
    name, config = type(graph.model).__name__, graph.as_transformers().config
    if getattr(config, "is_encoder_decoder", False) or not has_cache(graph.model):
        raise ConfigError(
            f"speculate: {name} is an encoder-decoder or was captured without its cache. Allowed: "
            "causal language models with a cache."
        )
    if others := kv_cache.other_states(config):
        raise ConfigError(
            f"speculate: layer {others[0]} of {name} keeps a state of a convolution, which cannot "
            "drop the tokens of a rejected draft. Allowed: models with full attention."
        )
    if any(DynamicCache(config=config).is_sliding):
        raise ConfigError(
            f"speculate: {name} has layers with a sliding window, whose cache cannot drop the "
            "tokens of a rejected draft. Allowed: models with full attention."
        )


def speculate(
    graph: MaseGraph,
    prompt: Sequence[int],
    drafter: Drafter,
    *,
    max_new_tokens: int,
    draft_tokens: int = 7,
    streamer: Any = None,
) -> Speculated:
    """Return the greedy answer to a prompt, with drafts of up to `draft_tokens` tokens."""
    check_speculation(graph)
    if not 1 <= draft_tokens <= MOST_DRAFTED:
        raise ConfigError(f"draft_tokens: {draft_tokens}. Allowed: 1 to {MOST_DRAFTED}.")
    run = _Run(graph, tuple(prompt), drafter, max_new_tokens, draft_tokens, streamer)
    with torch.inference_mode():
        return run.generate()


class _Run:
    """One speculative answer."""

    def __init__(
        self, graph: MaseGraph, prompt: tuple[int, ...], drafter: Drafter, most: int, longest: int,
        streamer: Any,
    ) -> None:  # fmt: skip
        self._graph, self._drafter, self._streamer = graph, drafter, streamer
        self._most, self._longest = most, longest
        self._reader = _Reader(graph)
        self._sampler = Sampler(graph.as_transformers(), prompt, Sampling(max_tokens=most))
        self._prompt = prompt
        self._is_done = False
        self._gate = drafter.gate()
        self._steps = self._drafted = self._accepted = 0

    @property
    def _tokens(self) -> list[int]:
        return [*self._prompt, *self._sampler.tokens]

    def generate(self) -> Speculated:
        start = time.perf_counter()
        self._emit(list(self._prompt))
        self._take(self._reader.logits(self._prompt), [])
        first = time.perf_counter() - start
        while not self._is_done:
            self._step()
        if self._streamer is not None:
            self._streamer.end()
        new = len(self._sampler.tokens)
        rest = time.perf_counter() - start - first
        rate = (new - 1) / rest if new > 1 else new / first
        sizes = (bytes_of(self._graph), cache_bytes(self._reader.cache), None)
        counts = (self._steps, self._drafted, self._accepted)
        return Speculated(torch.tensor([self._tokens]), new, first, rate, *sizes, *counts)

    def _step(self) -> None:
        room = self._most - len(self._sampler.tokens) - 1
        draft, before = self._draft(min(self._longest, room)), self._accepted
        self._steps += 1
        self._drafted += len(draft)
        # one length of steps: a native step is compiled for each
        filling = draft[-1:] * (self._longest - len(draft) if self._longest <= room else 0)
        read = [*draft, *filling]
        logits = self._reader.logits([*self._tokens, *read], len(read) + 1)
        self._take(logits[: len(draft) + 1], draft)
        self._gate.learn(draft, self._accepted - before)

    def _draft(self, most: int) -> list[int]:
        """Return a draft of up to `most` tokens, none if it is not expected to save time."""
        tokens = self._tokens
        if not most or self._gate.is_waiting(tokens):
            return []
        draft = self._drafter.propose(tokens, most)
        return draft if self._gate.admits(tokens, draft) else []

    def _take(self, logits: Tensor, draft: list[int]) -> None:
        """Choose a token by each row of logits, up to the first that differs from the draft."""
        for row, guess in zip(logits, [*draft, None], strict=True):
            token = self._sampler.choose(row)
            self._emit([token.id])
            self._is_done = token.is_end or len(self._sampler.tokens) >= self._most
            if token.id == guess:
                self._accepted += 1
            if self._is_done or token.id != guess:
                return

    def _emit(self, tokens: list[int]) -> None:
        if self._streamer is not None:
            self._streamer.put(torch.tensor(tokens))
