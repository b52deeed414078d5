"""The values that a tensor takes, in memory that does not grow with the data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_BINS, LEAST_BINS = 4096, 256
MOST_COUNTS = 2**20
"""Counts over all slots together: many slots get fewer bins each."""


class Histogram:
    """For each slot (a tensor, a channel, a group) the values it took and how often.

    While there are no more values than bins, they are kept as they are. Then they are counted in
    equal bins from -2**e to 2**e, and a value beyond doubles the reach: two bins become one. So one
    pass over the data is enough.
    """

    def __init__(self, slots: int) -> None:
        share = max(LEAST_BINS, min(MOST_BINS, MOST_COUNTS // slots))
        self.bins: int = 2 ** (share.bit_length() - 1)
        self._values: Tensor | None = torch.zeros(slots, 0)
        self._counts = torch.zeros(slots, 0, dtype=torch.int64)
        self._exponent = torch.zeros(slots)

    def add(self, rows: Tensor) -> None:
        """Take in `rows`, (slots, values)."""
        rows = rows.detach().cpu().float()
        if self._values is not None:
            rows = torch.cat([self._values, rows], 1)
            if rows.shape[1] <= self.bins:
                self._values = rows
                return
            self._values = None
            self._counts = torch.zeros(len(rows), self.bins, dtype=torch.int64)
            self._exponent = _exponent(rows)
        self._grow(_exponent(rows))
        self._count(rows)

    def _count(self, rows: Tensor) -> None:
        half = self.bins // 2
        steps = (rows * torch.exp2(-self._exponent)[:, None] * half).floor()
        index = steps.clamp(-half, half - 1).long() + half
        index += torch.arange(len(rows))[:, None] * self.bins
        found = torch.bincount(index.flatten(), minlength=self._counts.numel())
        self._counts += found.reshape(self._counts.shape)

    def _grow(self, needed: Tensor) -> None:
        quarter = self.bins // 4
        while bool((short := self._exponent < needed).any()):
            pairs = self._counts[short].reshape(-1, self.bins // 2, 2).sum(2)
            self._counts[short] = F.pad(pairs, (quarter, quarter))
            self._exponent = self._exponent + short

    @property
    def points(self) -> tuple[Tensor, Tensor]:
        """(slots, points) twice: values in order, the middles of bins, and how often each was."""
        if self._values is not None:
            return self._values.sort(1).values, torch.ones_like(self._values, dtype=torch.int64)
        width = torch.exp2(self._exponent)[:, None] * 2 / self.bins
        return (torch.arange(self.bins) - self.bins // 2 + 0.5) * width, self._counts

    def quantile(self, share: float) -> Tensor:
        """(slots,): the value that `share` of the values do not exceed, linear between points."""
        points, counts = self.points
        before = counts.cumsum(1).double() - 0.5 * counts
        wanted = share * counts.sum(1, keepdim=True)
        after = (before < wanted).sum(1, keepdim=True).clamp(1, max(points.shape[1] - 1, 1))
        after = after.clamp(max=points.shape[1] - 1)
        left, right = (after - 1).clamp(min=0), after
        low, high = points.gather(1, left), points.gather(1, right)
        gap = (before.gather(1, right) - before.gather(1, left)).clamp(min=1e-300)
        part = ((wanted - before.gather(1, left)) / gap).clamp(0, 1)
        return (low + (high - low) * part).float().squeeze(1)


def _exponent(rows: Tensor) -> Tensor:
    """log2 of the least power of two above each row's largest magnitude."""
    return torch.frexp(rows.abs().amax(1).clamp(min=2.0**-100)).exponent.float()
