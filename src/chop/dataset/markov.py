"""A synthetic language with a known best perplexity: a Markov chain of order 2."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from chop.arguments import WHOLE, check
from chop.dataset.arrays import ArrayDataset
from chop.dataset.built_in import DATASETS, OF_LANGUAGE
from chop.errors import DataError

VOCABULARY = 12  # tokens of the language
FOLLOWERS = 4  # tokens that may follow a pair
ODDS = (0.55, 0.25, 0.15, 0.05)  # their probabilities
LENGTH = 64  # tokens of a row


@DATASETS.entry("markov")
def markov(
    train_size: int = 1024, test_size: int = 128, length: int = LENGTH, seed: int = 0
) -> dict[str, ArrayDataset]:
    """Return rows of tokens; no model has a perplexity below `best_perplexity`."""
    least = {"train_size": 1, "test_size": 1, "length": 3, "seed": 0}
    settings = {"train_size": train_size, "test_size": test_size, "length": length, "seed": seed}
    for name, value in settings.items():
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
    """Return the tokens that may follow each pair, [12, 12, 4], from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.rand(VOCABULARY, VOCABULARY, VOCABULARY, generator=generator).argsort(-1)
    return shuffled[..., :FOLLOWERS]


def best_perplexity(length: int = LENGTH) -> float:
    """Return the perplexity of a perfect model on rows of `length` tokens.

    The second token of a row is any of 12; later ones have the entropy of `ODDS`.

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
