"""Choice of the next token: greedy, or drawn with a seed that belongs to the request."""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Rule by which the tokens of one answer are chosen.

    `temperature` 0: the most probable token. `logprobs`: number of alternatives to report with the
    log-probability of each token; None reports neither.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None


@dataclass(frozen=True)
class Token:
    """A generated token, with the log-probabilities of itself and of the most probable tokens."""

    id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    is_end: bool = False


@dataclass
class Sampler:
    """Sampler of one answer: `model` holds the defaults, such as a repetition penalty."""

    model: Any
    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = _generation_config(self.model, self.sampling)
        ends = config._eos_token_tensor
        self.ends = frozenset(() if ends is None else ends.tolist())
        self._processors = self.model._get_logits_processor(  # those of transformers' generate
            generation_config=config,
            input_ids_seq_length=len(self.prompt),
            encoder_input_ids=torch.tensor([self.prompt]),
            logits_processor=[],
            device="cpu",
            model_kwargs={},
        )
        seed = self.sampling.seed
        self._random = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)

    def choose(self, logits: Tensor) -> Token:
        """Choose the next token by the logits of the last position, and remember it."""
        scores = logits[None]
        if self._processors:
            scores = self._processors(torch.tensor([[*self.prompt, *self.tokens]]), scores.clone())
        if self.sampling.temperature:
            chances = scores[0].softmax(-1)
            choice = int(torch.multinomial(chances, 1, generator=self._random))
        else:
            choice = int(scores[0].argmax())
        self.tokens.append(choice)
        return self._described(choice, logits)

    def _described(self, choice: int, logits: Tensor) -> Token:
        is_end = choice in self.ends
        if self.sampling.logprobs is None:
            return Token(choice, is_end=is_end)
        chances = logits.log_softmax(-1)
        best = chances.topk(min(self.sampling.logprobs, len(chances)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return Token(choice, float(chances[choice]), tuple(pairs), is_end)


def _generation_config(model: Any, sampling: Sampling) -> Any:
    """Return the model's generation config with the choices of the request."""
    config = copy.deepcopy(model.generation_config)
    config.do_sample = sampling.temperature > 0
    config.temperature = sampling.temperature or 1.0
    config.top_p, config.top_k = sampling.top_p, 0
    config.num_beams = 1
    config.max_new_tokens = sampling.max_tokens
    ends = config.eos_token_id
    config._eos_token_tensor = None if ends is None else torch.tensor(ends).reshape(-1)
    return config
