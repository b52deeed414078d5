"""Gradual pruning: the sparsity to reach at each step of training."""

from __future__ import annotations

from dataclasses import dataclass

from chop.errors import ConfigError


@dataclass(frozen=True)
class CubicSchedule:
    """Sparsity from `initial` to `final` between two steps, fast first and slow at the end.

        s(t) = final + (initial - final) * (1 - (t - begin) / (end - begin)) ** 3

    >>> schedule = CubicSchedule(final=0.8, begin=0, end=100)
    >>> [round(schedule(step), 3) for step in (0, 50, 100, 200)]
    [0.0, 0.7, 0.8, 0.8]
    """

    final: float
    begin: int
    end: int
    initial: float = 0.0
    every: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.initial <= self.final < 1:
            raise ConfigError(
                "CubicSchedule: expected 0 <= initial <= final < 1, "
                f"got initial={self.initial}, final={self.final}."
            )
        if not 0 <= self.begin < self.end or self.every < 1:
            raise ConfigError(
                "CubicSchedule: expected 0 <= begin < end and every >= 1, "
                f"got begin={self.begin}, end={self.end}, every={self.every}."
            )

    def __call__(self, step: int) -> float:
        """Return the sparsity at `step`."""
        progress = min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.final + (self.initial - self.final) * (1.0 - progress) ** 3

    def is_due(self, step: int) -> bool:
        """Return True if `step` prunes: every `every` steps from `begin`, and at `end`."""
        within = self.begin <= step <= self.end
        return within and ((step - self.begin) % self.every == 0 or step == self.end)
