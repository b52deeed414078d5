"""Reviews as batches of equal length: tokens are moved to the device once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chop.dataset import TokenArrays

Batch = dict[str, Tensor]
LENGTHS = (64, 128, 192, 256, 320, 384, 448, 512)
"""Batches are padded to one of these, so that a GPU sees few shapes."""
POOL = 40
"""Batches whose reviews are sorted together: more saves padding, fewer keeps batches random."""


def evenly(data: TokenArrays, limit: int | None) -> TokenArrays:
    """At most `limit` reviews, taken evenly, because the files are sorted by label."""
    if limit is None or limit >= len(data):
        return data
    return data.select(np.linspace(0, len(data) - 1, limit).astype(int))


@dataclass(frozen=True)
class Reviews:
    """Tokens padded with zeros, one row a review, on the device that trains."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor
    host_lengths: Tensor

    @classmethod
    def on(cls, data: TokenArrays, device: torch.device) -> Reviews:
        """The reviews of `data` on `device`."""
        padded = np.zeros((len(data), data.max_token_len), dtype=np.int32)
        for i in range(len(data)):
            row = data.tokens(i)
            padded[i, : len(row)] = row
        lengths = torch.from_numpy(data.lengths.astype(np.int64))
        labels = torch.from_numpy(data.labels.astype(np.int64))
        there = (each.to(device) for each in (torch.from_numpy(padded), lengths, labels))
        return cls(*there, lengths)

    def __len__(self) -> int:
        return len(self.host_lengths)

    def batch(self, rows: Tensor) -> Batch:
        """The reviews `rows` (on the CPU), padded to the next of `LENGTHS`."""
        longest = int(self.host_lengths[rows].max())
        size = min(next(n for n in LENGTHS if n >= longest), self.tokens.shape[1])
        device = self.tokens.device
        there = rows.to(device, non_blocking=True)  # the only transfer, small enough not to wait
        positions = torch.arange(size, device=device)
        return {
            "input_ids": self.tokens[there, :size].long(),
            "attention_mask": (positions[None] < self.lengths[there, None]).long(),
            "labels": self.labels[there],
        }

    def shuffled(self, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Rows of each batch of an epoch: random, but of like length; a remainder is left out."""
        order = torch.randperm(len(self), generator=generator)
        order = order[: len(order) // batch_size * batch_size]
        batches: list[Tensor] = []
        for pool in order.split(batch_size * POOL):
            by_length = pool[self.host_lengths[pool].argsort(stable=True)]
            batches += by_length.split(batch_size)
        return [batches[i] for i in torch.randperm(len(batches), generator=generator)]

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Every review once, by length."""
        for rows in self.host_lengths.argsort(stable=True).split(batch_size):
            yield self.batch(rows)
