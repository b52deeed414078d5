"""A synthetic task over token sequences that no bag of words can solve."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.dataset.arrays import ArrayDataset
from chop.dataset.named import DATASETS
from chop.errors import DataError

PAD, FIRST, SECOND = 0, 1, 2
"""Padding, and the two marks whose order is the label."""
SHORTEST = 4


@DATASETS.entry("sequences")
def sequences(
    train_size: int = 512,
    test_size: int = 256,
    length: int = 16,
    vocab_size: int = 64,
    seed: int = 0,
) -> dict[str, ArrayDataset]:
    """Sequences of 4 to `length` tokens; the label is 1 where mark 1 comes before mark 2."""
    least = {
        "train_size": 1,
        "test_size": 1,
        "length": SHORTEST,
        "vocab_size": SECOND + 2,
        "seed": 0,
    }
    given = (train_size, test_size, length, vocab_size, seed)
    for (name, low), value in zip(least.items(), given, strict=True):
        if not isinstance(value, int) or value < low:
            raise DataError(f"sequences: {name} is {value!r}. Allowed: {low} or more.")
    generator = torch.Generator().manual_seed(seed)
    sizes = {"train": train_size, "test": test_size}
    return {
        split: ArrayDataset(_draw(size, length, vocab_size, generator))
        for split, size in sizes.items()
    }


def _draw(size: int, length: int, vocab_size: int, generator: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(SECOND + 1, vocab_size, (size, length), generator=generator)
    lengths = torch.randint(SHORTEST, length + 1, (size,), generator=generator)
    mask = torch.arange(length)[None] < lengths[:, None]
    scores = torch.rand(size, length, generator=generator).masked_fill(~mask, -1.0)
    places = scores.topk(2).indices  # two different places, in random order
    rows = torch.arange(size)
    ids[rows, places[:, 0]], ids[rows, places[:, 1]] = FIRST, SECOND
    return {
        "input_ids": ids.masked_fill(~mask, PAD),
        "attention_mask": mask.long(),
        "labels": (places[:, 0] < places[:, 1]).long(),
    }
