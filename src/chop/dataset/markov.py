"""A synthetic language whose best perplexity is known: each token is drawn by the two before it."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from chop.arguments import WHOLE, check
from chop.dataset.arrays import ArrayDataset
from chop.dataset.named import DATASETS, OF_LANGUAGE
from chop.errors import DataError

VOCABULARY = 12
"""Tokens of the language."""
FOLLOWERS = 4
"""Tokens that may follow two given ones."""
ODDS = (0.55, 0.25, 0.15, 0.05)
"""How often each of them does."""
LENGTH = 64
"""Tokens of a row."""


@DATASETS.entry("markov")
def markov(
    train_size: int = 1024, test_size: int = 128, length: int = LENGTH, seed: int = 0
) -> dict[str, ArrayDataset]:
    """Rows of tokens of a Markov chain of order 2; no model gets below `best_perplexity`."""
    least = {"train_size": 1, "test_size": 1, "length": 3, "seed": 0}
    given = {"train_size": train_size, "test_size": test_size, "length": length, "seed": seed}
    for name, value in given.items():
        check(f"markov: {name}", WHOLE, value, DataError)
        if value < least[name]:
            raise DataError(f"markov: {name} is {value}. Allowed: {least[name]} or more.")
    generator = torch.Generator().manual_seed(seed + 1)
    rows = _draw(train_size + test_size, length, generator)
    whole = ArrayDataset(
        {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows}
    )
    parts = {"train": range(train_size), "test": range(train_size, train_size + test_size)}
    return {name: whole.select(part) for name, part in parts.items()}


@functools.cache
def followers() -> Tensor:
    """The tokens that may follow each pair, [12, 12, 4]: the language itself, of its own seed."""
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.rand(VOCABULARY, VOCABULARY, VOCABULARY, generator=generator).argsort(-1)
    return shuffled[..., :FOLLOWERS]


def best_perplexity(length: int = LENGTH) -> float:
    """What a model that knows the language reaches on rows of `length` tokens.

    The second token of a row is any of 12; each later one is as surprising as `ODDS` are.

    >>> round(best_perplexity(), 3)
    3.1
    """
    surprise = -sum(odds * math.log(odds) for odds in ODDS)
    return math.exp((math.log(VOCABULARY) + (length - 2) * surprise) / (length - 1))


def _draw(count: int, length: int, generator: torch.Generator) -> Tensor:
    rows = torch.empty(count, length, dtype=torch.long)
    rows[:, :2] = torch.randint(VOCABULARY, (count, 2), generator=generator)
    choices = torch.multinomial(
        torch.tensor(ODDS).expand(count, -1), length, replacement=True, generator=generator
    )
    for place in range(2, length):
        following = followers()[rows[:, place - 2], rows[:, place - 1]]
        rows[:, place] = following.gather(1, choices[:, place : place + 1])[:, 0]
    return rows


DATASETS.check(OF_LANGUAGE, "dataset.OF_LANGUAGE")
