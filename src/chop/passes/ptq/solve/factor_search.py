"""Factors for the channels that linear layers read, by what they do to the layers' outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chop.nn.quantizers import Quantizer
from chop.passes.ptq.solve.gptq_rounding import output_error

ALPHAS = tuple(i / 10 for i in range(11))
ROWS_KEPT = 512
"""Rows of the input that errors are measured on where the input is rounded too."""
LEAST_SHARE = 1e-4
"""Of the largest channel: channels that are never on count as no less."""


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
    return merged[index].clamp(min=max(LEAST_SHARE * float(values.max()), 1e-30))


def _smooth(
    seen: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float
) -> Tensor:
    """Large channels of the input shrink to where the weight's columns are as large."""
    assert seen.largest is not None, "nothing was seen"
    column = torch.stack([w.abs().amax(0) for w in weights]).amax(0).float()
    x, w = (_shared(v, index) for v in (seen.largest, column))
    return x**alpha / w ** (1 - alpha)


def _awq(seen: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float) -> Tensor:
    """Columns of the weight grow with how strong their channel is on average."""
    return _shared(seen.mean, index) ** alpha


STYLES: dict[str, Candidates] = {"smooth": _smooth, "awq": _awq}
"""How factors are made of statistics and an exponent."""


def factors_of(
    style: str, seen: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float
) -> Tensor:
    """(channels,): the factors, of geometric mean one."""
    raw = STYLES[style](seen, weights, index, alpha)
    logs = raw.log()
    return (logs - logs.mean()).exp()


@dataclass(frozen=True)
class Maker:
    """The linear layer that makes the channels: it is rounded too, after its rows are divided.

    `rows`: its weight, and its bias as one more column; `power`: the mean square of what each
    column is multiplied with.
    """

    rows: Tensor
    has_bias: bool
    formats: Formats
    power: Tensor

    def relative_errors(self, divisors: Tensor) -> Tensor:
        """For each row the power of its error by that of its result, at rows so divided."""
        divided = self.rows / divisors[:, None]
        rounded = divided.clone()
        columns = divided.shape[1] - self.has_bias
        rounded[:, :columns] = self.formats["weight"](divided[:, :columns])
        if self.has_bias:
            rounded[:, columns] = self.formats["bias"](divided[:, columns])
        noise = ((rounded - divided).square() * self.power).sum(1)
        return noise / (divided.square() * self.power).sum(1).clamp(min=1e-30)


@dataclass(frozen=True)
class FactorProblem:
    """Who reads a value in which formats, what was seen of it, and the layer that makes it.

    `index` has the row of the maker for each channel.
    """

    seen: ChannelStatistics
    readers: Sequence[tuple[Tensor, Formats]]
    index: Tensor
    maker: Maker | None = None

    @property
    def weights(self) -> list[Tensor]:
        """The weights of the readers."""
        return [weight for weight, _ in self.readers]

    def error(self, factors: Tensor) -> float:
        """The mean squared error of all readers' outputs, for one row."""
        return sum(self._errors(factors)) + self._makers_error(factors)

    def _errors(self, factors: Tensor) -> Iterator[float]:
        x = torch.cat(self.seen.rows)
        for weight, forms in self.readers:
            scaled = forms["weight"](weight * factors)
            if forms["data_in"].is_bypass:
                assert self.seen.hessian is not None, "nothing was seen"
                yield output_error(scaled / factors - weight, self.seen.hessian) / self.seen.count
            else:
                result = forms["data_in"](x / factors) @ scaled.T - x @ weight.T
                yield float(result.double().square().sum()) / len(x)

    def _makers_error(self, factors: Tensor) -> float:
        if self.maker is None:
            return 0.0
        assert self.seen.hessian is not None, "nothing was seen"
        divisors = torch.ones(len(self.maker.rows)).to(factors).index_copy(0, self.index, factors)
        share = self.maker.relative_errors(divisors)[self.index]
        power = self.seen.hessian.diagonal() / self.seen.count
        reach = sum(weight.double().square().sum(0) for weight in self.weights)
        return float((share * power * reach).sum())

    @property
    def power(self) -> float:
        """The mean square of all readers' outputs, for one row."""
        assert self.seen.hessian is not None, "nothing was seen"
        return sum(output_error(w, self.seen.hessian) for w in self.weights) / self.seen.count


@dataclass(frozen=True)
class FactorChoice:
    """The factors chosen for a site, and the squared error of its readers without and with them."""

    factors: Tensor
    alpha: float | None
    before: float
    after: float


def best_factors(style: str, problem: FactorProblem, alphas: Sequence[float]) -> FactorChoice:
    """Of the factors for each of `alphas`, and none, those with the least error of the outputs."""
    none = torch.ones_like(problem.weights[0][0])
    before = problem.error(none)
    best = FactorChoice(none, None, before, before)
    for alpha in alphas:
        factors = factors_of(style, problem.seen, problem.weights, problem.index, alpha)
        error = problem.error(factors)
        if error < best.after:
            best = FactorChoice(factors, alpha, before, error)
    return best
