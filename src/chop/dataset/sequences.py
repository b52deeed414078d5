"""A synthetic task over token sequences that no bag of words can solve."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.dataset.arrays import ArrayDataset
from chop.dataset.built_in import DATASETS
from chop.errors import DataError

PAD, FIRST, SECOND = 0, 1, 2
"""Padding, and two marks; their order is the label."""
SHORTEST = 4  # tokens of the shortest sequence


@DATASETS.entry("sequences")
def sequences(
    train_size: int = 512,
    test_size: int = 256,
    length: int = 16,
    vocab_size: int = 64,
    seed: int = 0,
) -> dict[str, ArrayDataset]:
    """Return sequences of 4 to `length` tokens; label 1 if mark 1 comes before mark 2."""
    sizes = (("train_size", train_size, 1), ("test_size", test_size, 1), ("seed", seed, 0))
    lengths = (("length", length, SHORTEST), ("vocab_size", vocab_size, SECOND + 2))
    for name, value, low in (*sizes, *lengths):
        if not isinstance(value, int) or value < low:
            raise DataError(f"sequences: {name} is {value!r}. Allowed: {low} or more.")
    generator = torch.Generator().manual_seed(seed)
    return {
        split: ArrayDataset(_draw(size, length, vocab_size, generator))
        for split, size in (("train", train_size), ("test", test_size))
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
