"""Observers: each watches a tensor batch by batch and selects the range of its format.

An observer uses bounded memory and reads the data once; the same data always selects the same
range. To add one, write a class with `see` or `range_for` under `@OBSERVERS.entry("name")`; its
fields are its settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.config import parse
from chop.errors import ConfigError, RegistryError
from chop.nn.quantizers import Quantizer
from chop.passes.ptq.observe.format_ranges import RangedFormat, rules_of
from chop.passes.ptq.observe.histogram import Histogram
from chop.registry import Registry

Range = tuple[Tensor, Tensor]


@dataclass
class Observer(ABC):
    """Statistics of one operand's values, as rows (slots, values) with one range per row.

    Every range includes zero.
    """

    def __post_init__(self) -> None:
        self.low: Tensor | None = None
        self.high: Tensor | None = None

    def observe(self, rows: Tensor) -> None:
        """Add one batch."""
        rows = rows.detach().float().cpu()
        if rows.shape[1]:
            self.see(rows, rows.amin(1).clamp(max=0), rows.amax(1).clamp(min=0))

    @abstractmethod
    def see(self, rows: Tensor, low: Tensor, high: Tensor) -> None:
        """Add the values of a batch, and the smallest and largest of each slot."""

    def range_for(self, form: RangedFormat) -> Range:
        """Return the lowest and highest value that the format should reach, for each slot."""
        return self.seen

    @property
    def seen(self) -> Range:
        """Range so far."""
        assert self.low is not None and self.high is not None, "the observer saw nothing"
        return self.low, self.high

    def widen(self, low: Tensor, high: Tensor) -> None:
        """Extend the range to `low` and `high`."""
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)


OBSERVERS: Registry[type[Observer]] = Registry("observer")
"""Every observer, by name."""


@OBSERVERS.entry("min_max")
@dataclass
class MinMax(Observer):
    """The smallest and largest value: nothing is clipped."""

    def see(self, rows: Tensor, low: Tensor, high: Tensor) -> None:
        self.widen(low, high)


@OBSERVERS.entry("moving_average")
@dataclass
class MovingAverage(Observer):
    """Moving averages of each batch's smallest and largest value; `momentum` weighs the past."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ConfigError(
                f"moving_average.momentum: must be from 0 to less than 1, got {self.momentum}."
            )

    def see(self, rows: Tensor, low: Tensor, high: Tensor) -> None:
        if self.low is None or self.high is None:
            self.low, self.high = low, high
        else:
            self.low = self.low.lerp(low, 1 - self.momentum)
            self.high = self.high.lerp(high, 1 - self.momentum)


@dataclass
class HistogramObserver(Observer):
    """Observer that counts values in bins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.histogram: Histogram | None = None

    def see(self, rows: Tensor, low: Tensor, high: Tensor) -> None:
        self.widen(low, high)
        self.histogram = self.histogram or Histogram(len(rows))
        self.histogram.add(rows)

    @property
    def counted(self) -> Histogram:
        """Counts in bins."""
        assert self.histogram is not None, "the observer saw nothing"
        return self.histogram


@OBSERVERS.entry("percentile")
@dataclass
class Percentile(HistogramObserver):
    """The value on either side that `percentile` per cent of the values do not exceed."""

    percentile: float = 99.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 50 < self.percentile <= 100:
            raise ConfigError(
                f"percentile: must be above 50 and at most 100, got {self.percentile}."
            )

    def range_for(self, form: RangedFormat) -> Range:
        low, high = self.seen
        share = self.percentile / 100
        bottom, top = self.counted.quantile(1 - share), self.counted.quantile(share)
        return torch.maximum(low, bottom.clamp(max=0)), torch.minimum(high, top.clamp(min=0))


@dataclass
class SearchingObserver(HistogramObserver):
    """Observer that tries several shares of the whole range and uses the one of least loss."""

    @abstractmethod
    def loss(self, form: RangedFormat, ends: Range, x: Tensor, counts: Tensor) -> Tensor:
        """Return the loss of the range on the values `x` with their `counts`, (slots,)."""

    def range_for(self, form: RangedFormat) -> Range:
        low, high = self.seen
        points = self.counted.points
        best, least = torch.ones_like(low), torch.full_like(low, torch.inf, dtype=torch.float64)
        for clip in form.clips:
            loss = self.loss(form, (low * clip, high * clip), *points)
            best = torch.where(loss < least, clip, best)
            least = torch.minimum(loss, least)
        return low * best, high * best


@OBSERVERS.entry("mse")
@dataclass
class LeastSquares(SearchingObserver):
    """The range with the least squared error of rounding and clipping."""

    def loss(self, form: RangedFormat, ends: Range, x: Tensor, counts: Tensor) -> Tensor:
        error = (form.represent(x, *ends) - x).double().square()
        return (error * counts).sum(1)


@OBSERVERS.entry("entropy")
@dataclass
class Entropy(SearchingObserver):
    """The range whose rounded values are distributed most like the clipped values."""

    def loss(self, form: RangedFormat, ends: Range, x: Tensor, counts: Tensor) -> Tensor:
        counts = counts.double()
        changes = form.represent(x, *ends).diff(dim=1) != 0
        level = torch.nn.functional.pad(changes.cumsum(1), (1, 0))
        bottom, top = (bound[:, None] for bound in form.reached(*ends))
        inside = counts * ((x >= bottom) & (x <= top))
        spread, clipped = _spread(inside, level), _clipped(counts, inside)
        p, q = clipped / clipped.sum(1, keepdim=True), spread / spread.sum(1, keepdim=True)
        ratio = (p / q.clamp(min=1e-12)).clamp(min=1e-300).log()
        return (p * ratio).sum(1).nan_to_num(torch.inf)


def _spread(counts: Tensor, level: Tensor) -> Tensor:
    """Distribute the counts of each level equally over its bins that are not empty."""
    total = torch.zeros_like(counts).scatter_add_(1, level, counts)
    filled = torch.zeros_like(counts).scatter_add_(1, level, (counts > 0).double())
    return (total / filled.clamp(min=1)).gather(1, level) * (counts > 0)


def _clipped(counts: Tensor, inside: Tensor) -> Tensor:
    """Move the counts beyond the range to its first and last bins that are not empty."""
    filled = inside > 0
    first = filled.double().argmax(1, keepdim=True)
    last = counts.shape[1] - 1 - filled.flip(1).double().argmax(1, keepdim=True)
    place = torch.arange(counts.shape[1]).expand_as(counts)
    outside = counts - inside
    below = (outside * (place < first)).sum(1, keepdim=True)
    above = (outside * (place > last)).sum(1, keepdim=True)
    return inside.scatter_add(1, first, below).scatter_add(1, last, above)


class RuleObserver:
    """Squared errors of all rules for shared exponents, of formats that have several."""

    def __init__(self, form: Quantizer) -> None:
        self.errors: dict[Quantizer, float] = dict.fromkeys(rules_of(form), 0.0)

    def observe(self, x: Tensor) -> None:
        """Add one batch."""
        x = torch.where(torch.isfinite(x), x, 0.0).detach().float()
        for form in self.errors:
            self.errors[form] += float((form.quantize(x) - x).double().square().sum())

    def settings(self) -> dict[str, Any]:
        """Return the setting of the best rule."""
        best = min(self.errors, key=self.errors.__getitem__)
        return {"scale_rule": best.scale_rule}  # type: ignore[attr-defined]


def make_observer(choice: str | Mapping[str, Any], where: str) -> Observer:
    """Return a new observer by its name, or by a mapping with its `name` and settings.

    >>> make_observer({"name": "percentile", "percentile": 99.9}, "here").percentile
    99.9
    """
    settings: dict[str, Any] = {"name": choice} if isinstance(choice, str) else dict(choice)
    try:
        cls = OBSERVERS[str(settings.pop("name", None))]
    except RegistryError as error:
        raise ConfigError(f"{where}: {error}") from error
    return parse(cls, settings, where)
