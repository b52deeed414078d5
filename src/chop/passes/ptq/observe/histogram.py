"""Histograms of the values of a tensor, in memory that does not grow with the data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_BINS, LEAST_BINS = 4096, 256
MOST_COUNTS = 2**20
"""Largest number of counts over all slots together: many slots get fewer bins each."""


class BinCounts:
    """Counts in equal bins for each of several slots, (slots, bins).

    When the range of a slot doubles, neighbouring bins merge: no count is lost, and one pass over
    the data is enough.
    """

    def __init__(self, slots: int, bins: int, device: torch.device | str = "cpu") -> None:
        self.counts = torch.zeros(slots, bins, dtype=torch.int64, device=device)

    def add(self, places: Tensor) -> None:
        """Count values by their bins, (slots, values); clamp bins beyond the ends."""
        slots, bins = self.counts.shape
        index = places.clamp(0, bins - 1).long()
        index += torch.arange(slots, device=index.device)[:, None] * bins
        counts = torch.bincount(index.flatten(), minlength=self.counts.numel())
        self.counts += counts.reshape(self.counts.shape)

    def double(self, slots: Tensor | slice, below: float) -> None:
        """Double the range of `slots`, with the share `below` of the new bins under the old."""
        bins = self.counts.shape[1]
        merged = self.counts[slots].reshape(-1, bins // 2, 2).sum(2)
        under = int(below * (bins // 2))
        self.counts[slots] = F.pad(merged, (under, bins // 2 - under))


class Histogram:
    """Values of each slot (a tensor, a channel, a group) and how often each occurred.

    Values are stored while there are no more of them than bins. Then they are counted in bins from
    -2**e to 2**e, and a value beyond doubles the range.
    """

    def __init__(self, slots: int) -> None:
        share = max(LEAST_BINS, min(MOST_BINS, MOST_COUNTS // slots))
        self.bins: int = 2 ** (share.bit_length() - 1)
        self._values: Tensor | None = torch.zeros(slots, 0)
        self._bins = BinCounts(slots, 0)
        self._exponent = torch.zeros(slots)

    def add(self, rows: Tensor) -> None:
        """Add `rows`, (slots, values)."""
        rows = rows.detach().cpu().float()
        if self._values is not None:
            rows = torch.cat([self._values, rows], 1)
            if rows.shape[1] <= self.bins:
                self._values = rows
                return
            self._values = None
            self._bins = BinCounts(len(rows), self.bins)
            self._exponent = _exponent(rows)
        needed = _exponent(rows)
        while bool((short := self._exponent < needed).any()):
            self._bins.double(short, below=0.5)
            self._exponent = self._exponent + short
        half = self.bins // 2
        self._bins.add((rows * torch.exp2(-self._exponent)[:, None] * half).floor() + half)

    @property
    def points(self) -> tuple[Tensor, Tensor]:
        """Values in order (bin centres if counted) and their counts, both (slots, points)."""
        if self._values is not None:
            return self._values.sort(1).values, torch.ones_like(self._values, dtype=torch.int64)
        width = torch.exp2(self._exponent)[:, None] * 2 / self.bins
        return (torch.arange(self.bins) - self.bins // 2 + 0.5) * width, self._bins.counts

    def quantile(self, share: float) -> Tensor:
        """Return the value that `share` of the values do not exceed, (slots,), interpolated."""
        points, counts = self.points
        before = counts.cumsum(1).double() - 0.5 * counts
        rank = share * counts.sum(1, keepdim=True)
        after = (before < rank).sum(1, keepdim=True).clamp(1, max(points.shape[1] - 1, 1))
        after = after.clamp(max=points.shape[1] - 1)
        left, right = (after - 1).clamp(min=0), after
        low, high = points.gather(1, left), points.gather(1, right)
        gap = (before.gather(1, right) - before.gather(1, left)).clamp(min=1e-300)
        part = ((rank - before.gather(1, left)) / gap).clamp(0, 1)
        return (low + (high - low) * part).float().squeeze(1)


def _exponent(rows: Tensor) -> Tensor:
    """Return log2 of the smallest power of two above each row's largest magnitude."""
    return torch.frexp(rows.abs().amax(1).clamp(min=2.0**-100)).exponent.float()
