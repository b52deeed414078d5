"""Statistics of tensors that arrive in pieces: one class each, listed in `STATISTICS`.

To add one, write a `Statistic` under `@statistic("name")`; its fields are its configuration.
`dims` are the reduced dimensions: "all" returns one number, a list of dimensions keeps the others,
None keeps every element and reduces over the pieces alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.passes.ptq.observe.histogram import BinCounts
from chop.registry import Registry

Dims = Literal["all"] | list[int] | None


@dataclass
class Statistic:
    """A statistic that is updated by `update` and returned by `compute`.

    `device`: where to gather ("cpu", "cuda"); None leaves tensors where they are.
    """

    device: str | None = None
    dims: Dims = "all"

    def update(self, x: Tensor) -> None:
        """Add one piece; ignore an empty one."""
        if x.numel() == 0:
            return
        x = x.detach().to(self.device or x.device)
        self.take(rows(x if x.is_floating_point() else x.float(), self.dims))

    def take(self, values: Tensor) -> None:
        """Add values with the shape (kept dimensions, observations)."""
        raise NotImplementedError

    def compute(self) -> dict[str, Any]:
        """Return the statistic of all pieces so far."""
        raise NotImplementedError


S = TypeVar("S", bound=type[Statistic])
STATISTICS: Registry[type[Statistic]] = Registry("statistic")
"""Every statistic of the profiler, by name."""


def statistic(name: str, aliases: tuple[str, ...] = ()) -> Callable[[S], S]:
    """Register a class as the statistic `name`."""

    def decorate(cls: S) -> S:
        STATISTICS.register(name, cls, aliases)
        return cls

    return decorate


def rows(x: Tensor, dims: Dims) -> Tensor:
    """Return `x` with the reduced dimensions flattened into the last.

    >>> rows(torch.zeros(2, 3, 4), [0, 2]).shape
    torch.Size([3, 8])
    """
    if dims == "all":
        return x.reshape(-1)
    reduced = [d % max(x.dim(), 1) for d in dims or []]
    others = [d for d in range(x.dim()) if d not in reduced]
    return x.permute(*others, *reduced).reshape(*(x.shape[d] for d in others), -1)


@dataclass
class _Keeping(Statistic):
    """Statistic that stores all values, because one pass is not enough."""

    pieces: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def take(self, values: Tensor) -> None:
        self.pieces.append(values.clone())

    def values(self) -> Tensor:
        """Return all values so far, observations last."""
        return torch.cat(self.pieces, dim=-1)


@statistic("record")
@dataclass
class RecordedValues(_Keeping):
    """The values themselves."""

    def compute(self) -> dict[str, Any]:
        return {"data": self.values()}


@statistic("variance_precise")
@dataclass
class VariancePrecise(_Keeping):
    """Mean and variance in two passes over stored values."""

    def compute(self) -> dict[str, Any]:
        values = self.values()
        return {
            "mean": values.mean(-1),
            "variance": values.var(-1, correction=_correction(values.shape[-1])),
            "count": values.shape[-1],
        }


def _correction(count: int) -> int:
    return 1 if count > 1 else 0  # one observation has variance 0, not NaN


@statistic("variance_online")
@dataclass
class VarianceOnline(Statistic):
    """Mean and variance in one pass, by merging the moments of each piece (Chan et al.)."""

    count: int = field(default=0, init=False)
    mean: Any = field(default=0.0, init=False)
    squares: Any = field(default=0.0, init=False)

    def take(self, values: Tensor) -> None:
        values = values.double()
        n, mean = values.shape[-1], values.mean(-1)
        total, shift = self.count + n, mean - self.mean
        squares = ((values - mean.unsqueeze(-1)) ** 2).sum(-1)
        self.squares = self.squares + squares + shift**2 * (self.count * n / total)
        self.mean = self.mean + shift * (n / total)
        self.count = total

    def compute(self) -> dict[str, Any]:
        free = self.count - _correction(self.count)
        variance = (self.squares / free).float()
        return {"mean": self.mean.float(), "variance": variance, "count": self.count}


@statistic("range_n_sigma")
@dataclass
class RangeNSigma(VarianceOnline):
    """Interval mean ± `num_sigmas` standard deviations; of magnitudes with `abs`.

    `var_mode` is accepted for older programs; both modes return the same numbers.
    """

    num_sigmas: float = 3.0
    abs: bool = False
    var_mode: Literal["precise", "online"] = "online"

    def take(self, values: Tensor) -> None:
        super().take(values.abs() if self.abs else values)

    def compute(self) -> dict[str, Any]:
        moments = super().compute()
        reach = self.num_sigmas * moments["variance"].sqrt()
        low, high = moments["mean"] - reach, moments["mean"] + reach
        return {"min": low, "max": high, "range": high - low, "count": self.count}


@statistic("range_min_max")
@dataclass
class RangeMinMax(Statistic):
    """Smallest and largest value; of magnitudes with `abs`."""

    abs: bool = False
    count: int = field(default=0, init=False)
    low: Any = field(default=None, init=False)
    high: Any = field(default=None, init=False)

    def take(self, values: Tensor) -> None:
        values = values.abs() if self.abs else values
        low, high = values.amin(-1), values.amax(-1)
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)
        self.count += values.shape[-1]

    def compute(self) -> dict[str, Any]:
        span = self.high - self.low
        return {"min": self.low, "max": self.high, "range": span, "count": self.count}


@statistic("range_quantile")
@dataclass
class RangeQuantile(_Keeping):
    """Interval of the central fraction `quantile` of the values; of magnitudes with `abs`."""

    quantile: float = 0.97
    abs: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise ConfigError(f"quantile must be above 0 and at most 1, got {self.quantile}.")

    def compute(self) -> dict[str, Any]:
        values = self.values().abs() if self.abs else self.values()
        ordered, tail = values.sort(-1).values, (1 - self.quantile) / 2
        low, high = _quantile(ordered, tail), _quantile(ordered, 1 - tail)
        return {"min": low, "max": high, "range": high - low, "count": ordered.shape[-1]}


def _quantile(ordered: Tensor, fraction: float) -> Tensor:
    # torch.quantile rejects more than 2**24 values; the rule is the same linear interpolation.
    place = fraction * (ordered.shape[-1] - 1)
    below = int(place)
    above = min(below + 1, ordered.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], place - below)


@statistic("mean")
@dataclass
class Mean(Statistic):
    """The mean, in one pass."""

    count: int = field(default=0, init=False)
    total: Any = field(default=0.0, init=False)

    def take(self, values: Tensor) -> None:
        self.total = self.total + values.sum(-1, dtype=torch.float64)
        self.count += values.shape[-1]

    def compute(self) -> dict[str, Any]:
        return {"mean": (self.total / self.count).float(), "count": self.count}


@statistic("abs_mean")
@dataclass
class AbsMean(Mean):
    """The mean of magnitudes, in one pass."""

    def take(self, values: Tensor) -> None:
        super().take(values.abs())

    def compute(self) -> dict[str, Any]:
        mean = super().compute()
        return {"abs_mean": mean["mean"], "count": mean["count"]}


@statistic("histogram")
@dataclass
class HistogramStatistic(Statistic):
    """Counts in `bins` equal bins, over all dimensions.

    The first piece sets the range. A value outside doubles the range towards it.
    """

    bins: int = 64
    counted: BinCounts | None = field(default=None, init=False, repr=False)
    low: float = field(default=0.0, init=False)
    high: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.bins < 2 or self.bins % 2:
            raise ConfigError(f"bins must be even and at least 2, got {self.bins}.")
        if self.dims != "all":
            raise ConfigError(f"a histogram is over dims 'all', got {self.dims!r}.")

    def take(self, values: Tensor) -> None:
        values = values[values.isfinite()].double()  # a mask's -inf has no bin
        if values.numel() == 0:
            return
        low, high = float(values.min()), float(values.max())
        if self.counted is None:
            self.low, self.high = (low, high) if high > low else (low - 0.5, low + 0.5)
            self.counted = BinCounts(1, self.bins, values.device)
        while low < self.low:
            self.counted.double(slice(None), below=1)
            self.low -= self.high - self.low
        while high > self.high:
            self.counted.double(slice(None), below=0)
            self.high += self.high - self.low
        width = (self.high - self.low) / self.bins
        self.counted.add((values - self.low)[None] / width)

    def compute(self) -> dict[str, Any]:
        if self.counted is None:
            return {"counts": torch.zeros(self.bins, dtype=torch.int64), "edges": None, "count": 0}
        counts = self.counted.counts[0].clone()
        edges = torch.linspace(self.low, self.high, self.bins + 1, dtype=torch.float64)
        return {"counts": counts, "edges": edges, "count": int(counts.sum())}
