"""Search of factors for the channels that linear layers read, by the error of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from chop.nn.quantizers import Quantizer
from chop.passes.ptq.observe.held_back import HELD_BACK, RowSplit, checked_fit, fitted_rows
from chop.passes.ptq.solve.column_feedback import output_error

ALPHAS = tuple(i / 10 for i in range(11))
ROWS_KEPT = 512
"""Rows of the input that errors are measured on if the input is rounded too."""
LEAST_SHARE = 1e-4
"""Smallest magnitude of a channel that is used, relative to the largest channel."""


@dataclass
class ChannelStatistics:
    """Statistics of a value (rows, channels): magnitudes, products, and a sample of its rows."""

    per_batch: int
    largest: Tensor | None = None
    total: Tensor | None = None
    hessian: Tensor | None = None
    count: int = 0
    rows: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> None:
        """Add one batch."""
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

    def __add__(self, other: ChannelStatistics) -> ChannelStatistics:
        """Return the statistics over the rows of both."""
        (largest, _, hessian), (other_largest, _, other_hessian) = (
            self.measured(),
            other.measured(),
        )
        assert self.total is not None and other.total is not None
        return ChannelStatistics(
            self.per_batch + other.per_batch,
            torch.maximum(largest, other_largest),
            self.total + other.total,
            hessian + other_hessian,
            self.count + other.count,
            [*self.rows, *other.rows],
        )

    def measured(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the largest and the mean magnitude of each channel, and the sum of x xᵀ."""
        assert self.largest is not None, "no batch was added"
        assert self.total is not None and self.hessian is not None
        return self.largest, (self.total / self.count).float(), self.hessian


def split_statistics(batches: Iterable[Tensor], per_batch: int) -> RowSplit[ChannelStatistics]:
    """Return the statistics over the batches, of which the last rows are held back."""
    fitted = ChannelStatistics(per_batch)
    held_back = ChannelStatistics(-(-per_batch // HELD_BACK))
    for x in batches:
        rows = x.detach().float().reshape(-1, x.shape[-1])
        end = fitted_rows(len(rows))
        fitted.add(rows[:end])
        if end < len(rows):
            held_back.add(rows[end:])
    if not held_back.count:
        return RowSplit(fitted)
    return RowSplit(fitted, held_back, fitted + held_back)


Formats = Mapping[str, Quantizer]
Candidates = Callable[[ChannelStatistics, Sequence[Tensor], Tensor, float], Tensor]


def _shared(values: Tensor, index: Tensor) -> Tensor:
    """Return for each channel the largest value of the channels with the same source."""
    merged = values.new_zeros(int(index.max()) + 1).scatter_reduce_(0, index, values, "amax")
    return merged[index].clamp(min=max(LEAST_SHARE * float(values.max()), 1e-30))


def _smooth(
    statistics: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float
) -> Tensor:
    """Shrink large channels of the input until the weight's columns are as large."""
    column = torch.stack([w.abs().amax(0) for w in weights]).amax(0).float()
    x, w = (_shared(v, index) for v in (statistics.measured()[0], column))
    return x**alpha / w ** (1 - alpha)


def _awq(
    statistics: ChannelStatistics, weights: Sequence[Tensor], index: Tensor, alpha: float
) -> Tensor:
    """Grow the weight's columns with the mean magnitude of their channels."""
    return _shared(statistics.measured()[1], index) ** alpha


STYLES: dict[str, Candidates] = {"smooth": _smooth, "awq": _awq}
"""Functions that compute factors from statistics and an exponent."""


def factors_of(
    style: str,
    statistics: ChannelStatistics,
    weights: Sequence[Tensor],
    index: Tensor,
    alpha: float,
) -> Tensor:
    """Return the factors of all channels, with a geometric mean of one."""
    logs = STYLES[style](statistics, weights, index, alpha).log()
    return (logs - logs.mean()).exp()


@dataclass(frozen=True)
class Maker:
    """The linear layer that makes the channels; its rows are divided and then rounded.

    `rows`: its weight, and its bias as one more column. `power`: the mean square of the input of
    each column.
    """

    rows: Tensor
    has_bias: bool
    formats: Formats
    power: Tensor

    def relative_errors(self, divisors: Tensor) -> Tensor:
        """Return the power of each row's error relative to that of its result, after division."""
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
    """A value: its statistics, the weights and formats of its readers, and the layer that makes it.

    `index`: the row of the maker for each channel.
    """

    statistics: ChannelStatistics
    readers: Sequence[tuple[Tensor, Formats]]
    index: Tensor
    maker: Maker | None = None

    @property
    def weights(self) -> list[Tensor]:
        """The weights of the readers."""
        return [weight for weight, _ in self.readers]

    def error(self, factors: Tensor) -> float:
        """Return the mean squared error of all readers' outputs, for one row."""
        return sum(self._errors(factors)) + self._makers_error(factors)

    def _errors(self, factors: Tensor) -> Iterator[float]:
        x = torch.cat(self.statistics.rows)
        for weight, forms in self.readers:
            scaled = forms["weight"](weight * factors)
            if forms["data_in"].is_bypass:
                yield self._per_row(scaled / factors - weight)
            else:
                result = forms["data_in"](x / factors) @ scaled.T - x @ weight.T
                yield float(result.double().square().sum()) / len(x)

    def _per_row(self, difference: Tensor) -> float:
        return output_error(difference, self.statistics.measured()[2]) / self.statistics.count

    def _makers_error(self, factors: Tensor) -> float:
        if self.maker is None:
            return 0.0
        divisors = torch.ones(len(self.maker.rows)).to(factors).index_copy(0, self.index, factors)
        share = self.maker.relative_errors(divisors)[self.index]
        power = self.statistics.measured()[2].diagonal() / self.statistics.count
        reach = sum(weight.double().square().sum(0) for weight in self.weights)
        return float((share * power * reach).sum())

    @property
    def power(self) -> float:
        """Mean square of all readers' outputs, for one row."""
        return sum(map(self._per_row, self.weights))


@dataclass(frozen=True)
class FactorChoice:
    """Factors of a site, and the squared error of its readers without and with them."""

    factors: Tensor
    alpha: float | None
    before: float
    after: float
    is_fallback: bool = False


def checked_factors(
    choose: Callable[[FactorProblem], FactorChoice],
    problem: FactorProblem,
    rows: RowSplit[ChannelStatistics],
) -> FactorChoice:
    """Return the factors that `choose` fits; ones if they are worse on the held-back rows."""
    none = torch.ones_like(problem.weights[0][0])

    def on(statistics: ChannelStatistics) -> FactorProblem:
        return replace(problem, statistics=statistics)

    def error(choice: FactorChoice | None, statistics: ChannelStatistics) -> float:
        return on(statistics).error(none if choice is None else choice.factors)

    choice = checked_fit(lambda statistics: choose(on(statistics)), error, rows)
    if choice is not None:
        return choice
    before = on(rows.whole or rows.fitted).error(none)
    return FactorChoice(none, None, before, before, is_fallback=True)


def best_factors(style: str, problem: FactorProblem, alphas: Sequence[float]) -> FactorChoice:
    """Return the factors with the least error of the outputs, for any of `alphas` or none."""
    none = torch.ones_like(problem.weights[0][0])
    before = problem.error(none)
    best = FactorChoice(none, None, before, before)
    for alpha in alphas:
        factors = factors_of(style, problem.statistics, problem.weights, problem.index, alpha)
        error = problem.error(factors)
        if error < best.after:
            best = FactorChoice(factors, alpha, before, error)
    return best
