"""Factors for the channels that linear layers read, by what they do to the layers' outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chop.nn.quantizers import Bypass, Quantizer
from chop.passes.graph.gptq_rounding import output_error

ALPHAS = tuple(i / 10 for i in range(11))
ROWS_KEPT = 512
"""Rows of the input that errors are measured on where the input is rounded too."""
TINY, LARGEST_FACTOR = 1e-5, 1e4


@dataclass
class ChannelStatistics:
    """What is seen of a value, (rows, channels): magnitudes, products, and some of its rows."""

    per_batch: int
    largest: Tensor | None = None
    total: Tensor | None = None
    hessian: Tensor | None = None
    count: int = 0
    rows: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> None:
        """See one batch."""
        rows = x.detach().float().reshape(-1, x.shape[-1])
        magnitude, product = rows.abs(), (rows.T @ rows).double()
        largest, total = magnitude.amax(0), magnitude.double().sum(0)
        if self.largest is None or self.total is None or self.hessian is None:
            self.largest, self.total, self.hessian = largest, total, product
        else:
            self.largest = torch.maximum(self.largest, largest)
            self.total, self.hessian = self.total + total, self.hessian + product
        self.count += len(rows)
        step = -(-len(rows) // self.per_batch)
        self.rows.append(rows[::step])

    @property
    def mean(self) -> Tensor:
        """The mean magnitude of each channel."""
        assert self.total is not None, "nothing was seen"
        return (self.total / self.count).float()


Formats = Mapping[str, Quantizer]
Candidates = Callable[[ChannelStatistics, Sequence[Tensor], Tensor, float], Tensor]


def _shared(values: Tensor, index: Tensor) -> Tensor:
    """The largest of the channels that come from one channel, for each of them."""
    merged = values.new_zeros(int(index.max()) + 1).scatter_reduce_(0, index, values, "amax")
    return merged[index]


def _smooth(
    seen: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float
) -> Tensor:
    """Large channels of the input shrink to where the weight's columns are as large."""
    assert seen.largest is not None, "nothing was seen"
    column = torch.stack([w.abs().amax(0) for w in weights]).amax(0).float()
    x, w = (_shared(v, index).clamp(min=TINY) for v in (seen.largest, column))
    return x**alpha / w ** (1 - alpha)


def _awq(seen: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float) -> Tensor:
    """Columns of the weight grow with how strong their channel is on average."""
    return _shared(seen.mean, index).clamp(min=TINY) ** alpha


STYLES: dict[str, Candidates] = {"smooth": _smooth, "awq": _awq}
"""How factors are made of statistics and an exponent."""


def factors_of(
    style: str, seen: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float
) -> Tensor:
    """(channels,): the factors, of geometric mean one."""
    raw = STYLES[style](seen, weights, index, alpha)
    logs = raw.log()
    return (logs - logs.mean()).exp().clamp(1 / LARGEST_FACTOR, LARGEST_FACTOR)


@dataclass(frozen=True)
class Choice:
    """The factors chosen for a site, and the squared error of its readers without and with them."""

    factors: Tensor
    alpha: float | None
    before: float
    after: float


def best_factors(
    style: str,
    seen: ChannelStatistics,
    layers: Sequence[tuple[Tensor, Formats]],
    index: Tensor,
    alphas: Sequence[float],
) -> Choice:
    """Of the factors for each of `alphas`, and none, those with the least error of the outputs."""
    weights = [weight for weight, _ in layers]
    none = torch.ones(weights[0].shape[1])
    before = _error(seen, layers, none)
    best = Choice(none, None, before, before)
    for alpha in alphas:
        factors = factors_of(style, seen, weights, index, alpha)
        error = _error(seen, layers, factors)
        if error < best.after:
            best = Choice(factors, alpha, before, error)
    return best


def _error(
    seen: ChannelStatistics, layers: Sequence[tuple[Tensor, Formats]], factors: Tensor
) -> float:
    """The squared error of all readers' outputs."""
    return sum(_errors(seen, layers, factors))


def _errors(
    seen: ChannelStatistics, layers: Sequence[tuple[Tensor, Formats]], factors: Tensor
) -> Iterator[float]:
    x = torch.cat(seen.rows)
    for weight, forms in layers:
        scaled = forms["weight"](weight * factors.to(weight))
        if isinstance(forms["data_in"], Bypass):
            assert seen.hessian is not None, "nothing was seen"
            difference = (scaled / factors.to(weight) - weight).float()
            # per row, as the other errors are
            yield output_error(difference, seen.hessian) / seen.count
        else:
            given = forms["data_in"](x / factors.to(x))
            result = given @ scaled.float().T - x @ weight.float().T
            yield float(result.double().square().sum()) / len(x)
