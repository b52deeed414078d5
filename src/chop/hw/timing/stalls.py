"""Random offers and acceptances of beats in a run, and the cycles in which beats passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_FULL = 1 << 24
"""Threshold of the random draw that always succeeds."""


@dataclass(frozen=True)
class Stalls:
    """Probabilities that a source offers (`valid`) and a sink takes (`ready`) a beat."""

    valid: float = 1.0
    ready: float = 1.0
    seed: int = 1
    inside: float = 1.0
    """Probability that a stream between two stages lets a beat pass."""
    burst: int = 1
    """Cycles for which each drawn decision holds."""
    resets: int = 0
    """Runs that a reset cuts off before the run that counts."""

    def thresholds(self) -> tuple[int, int, int]:
        """Return the probabilities as 24-bit integers."""
        return round(self.valid * _FULL), round(self.ready * _FULL), round(self.inside * _FULL)

    @property
    def is_drawn(self) -> bool:
        """True if a decision is random: then a part of the run differs from the whole."""
        return min(self.valid, self.ready, self.inside) < 1 or self.resets > 0


NO_STALLS = Stalls()
Times = Sequence[int] | npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Timing:
    """Cycles after reset in which beats passed the ports of a design."""

    inputs: Mapping[str, Times]
    outputs: Mapping[str, Times]

    @property
    def cycles(self) -> int:
        """Cycles until the last beat has left."""
        return 1 + max(int(times[-1]) for times in self.outputs.values())

    def tensor_ends(self, name: str, beats: int) -> list[int]:
        """Return the cycle in which the last beat of each tensor left by output `name`."""
        return [int(t) for t in self.outputs[name][beats - 1 :: beats]]


class Draw:
    """The driver's random decisions."""

    def __init__(self, stalls: Stalls, offset: int, threshold: int) -> None:
        self.state = (stalls.seed + offset) & 0xFFFFFFFF
        self.threshold, self.burst = threshold, stalls.burst
        self.left = 0
        self.passes = False

    def next(self) -> bool:
        if not self.left:
            self.left = self.burst
            self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
            self.passes = self.state >> 8 < self.threshold
        self.left -= 1
        return self.passes


def draws(stalls: Stalls, prime: int, count: int, threshold: int) -> list[Draw]:
    """Return independent decisions for each of `count` streams."""
    return [Draw(stalls, prime * (k + 1), threshold) for k in range(count)]


_LATENCY = 200
"""More cycles than a beat spends in the pipeline of any stage."""


def patience(cycles: int, stalls: Stalls, stages: int = 1) -> int:
    """Return the cycles without a beat after which a design will not move any more.

    `cycles` is its folding bound. `stages` is the number of stages that a beat passes in turn
    while nothing moves where beats are counted.
    """
    rate = min(stalls.valid, stalls.ready, stalls.inside)
    return int((_LATENCY * stages + 2 * cycles + 20 * (stalls.burst - 1)) / rate)
