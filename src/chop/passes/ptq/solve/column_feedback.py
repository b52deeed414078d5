"""Columns of a weight rounded or pruned in turn; later columns compensate for earlier errors.

GPTQ (Frantar et al., 2022) rounds each column, SparseGPT (Frantar and Alistarh, 2023) prunes it.
Both minimise the error of the layer's output on the calibration data, (W - Q) H (W - Q)ᵀ with H the
sum of x xᵀ. Both distribute the error of a column over the columns that follow, by the Cholesky
factor of the inverse of H.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from chop.errors import PassError
from chop.passes.ptq.observe.row_sums import InputSums
from chop.passes.ptq.observe.stored_matrix import (
    Matrix,
    StoredRows,
    product,
    rows_of,
    steps,
    weight_slices,
)
from chop.passes.ptq.solve.column_kernels import BLOCK, ColumnBlock, ColumnKernels
from chop.passes.ptq.solve.weight_grid import WeightGrid


def decide_columns(
    work: Tensor, factor: Matrix, decide: Callable[[int, Tensor], Tensor], block: int = BLOCK
) -> None:
    """Replace each column of `work` by `decide(number, column)` and correct those that follow.

    `factor` is that of `inverse_factor`, with the columns in the same order. When `decide` is
    called, the columns before hold their decided values, and the rest of the block is up to date.
    """
    for inside in steps(work.shape[1], block):
        start, after = inside.start, slice(inside.stop, None)
        panel = rows_of(factor, start, inside.stop)
        here, factors = work[:, inside], panel[:, inside]
        diagonal = factors.diagonal().unbind()
        errors = work.new_empty(here.shape)
        for i, (column, error) in enumerate(zip(here.unbind(1), errors.unbind(1), strict=True)):
            decided = decide(start + i, column)
            torch.sub(column, decided, out=error).div_(diagonal[i])
            here[:, i + 1 :].sub_(error[:, None] * factors[i, i + 1 :])
            column.copy_(decided)
        work[:, after].addmm_(errors, panel[:, after], alpha=-1)


def without_dead(hessian: Tensor) -> Tensor:
    """Return H with a positive diagonal: inputs that are always zero get the mean of the others."""
    diagonal = hessian.diagonal()
    if (diagonal == 0).any():
        hessian = hessian.clone()
        hessian.diagonal().copy_(without_dead_diagonal(diagonal))
    return hessian


def without_dead_diagonal(diagonal: Tensor) -> Tensor:
    """Return the diagonal of `without_dead`, given that of H."""
    return torch.where(diagonal == 0, diagonal.mean().clamp(min=1e-30), diagonal)


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """Return the upper Cholesky factor of the inverse of H; raise the damping until H has one.

    With H = R Rᵀ and R upper, it is the inverse of R. R is the lower factor of H with its rows and
    columns in reverse order, reversed.
    """
    if not hessian.isfinite().all():  # no damping helps
        raise PassError("the sums over the inputs of a layer have NaN or infinity.")
    mean = hessian.diagonal().mean()
    while True:
        lifted = hessian.flip(0, 1)
        lifted.diagonal().add_(damping * mean)
        lower, info = torch.linalg.cholesky_ex(lifted)
        del lifted  # each of these is as large as H
        if int(info) == 0:
            # by columns, so that the solver writes in place
            inverse = torch.eye(len(lower), dtype=lower.dtype, device=lower.device).mT
            torch.linalg.solve_triangular(lower, inverse, upper=False, out=inverse)
            del lower
            if inverse.isfinite().all():
                return inverse.flip(0, 1)
        damping = more_damping(damping)


def more_damping(damping: float) -> float:
    """Return the next damping to try for a matrix that has no Cholesky factor."""
    return max(10 * damping, 1e-8)


def rounded_with_feedback(
    weight: Tensor,
    hessian: Tensor,
    grid: WeightGrid,
    *,
    damping: float,
    by_importance: bool,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the rounded weight, zero where `mask` is False, and the range of each group.

    With `by_importance`, columns are ordered by the diagonal of H, the largest first, and ranges
    are selected beforehand. Otherwise columns go from left to right, and the range of a group is
    selected at its first column, from the current weights.
    """
    hessian = without_dead(hessian.double())
    importance = hessian.diagonal()
    order = column_order(importance, by_importance=by_importance)
    factor = inverse_factor(hessian[order[:, None], order], damping)
    columns = ColumnRounding(grid, importance, factor, order, by_importance=by_importance)
    return columns(weight.double(), mask)


def column_order(importance: Tensor, *, by_importance: bool) -> Tensor:
    """Return the numbers of the columns in the order in which they are rounded."""
    if by_importance:
        return importance.argsort(descending=True, stable=True)
    return torch.arange(len(importance), device=importance.device)


@dataclass(frozen=True)
class ColumnRounding:
    """Rounding with feedback of the rows of a weight; any rows can be rounded alone.

    `importance`: diagonal of H. `factor`: result of `inverse_factor` for the columns in `order`.
    """

    grid: WeightGrid
    importance: Tensor
    factor: Matrix
    order: Tensor
    by_importance: bool = field(kw_only=True)

    def __call__(self, weight: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the rounded rows, zero where `mask` is False, and the range of each group."""
        grid, order = self.grid, self.order
        work = weight[:, order].clone()
        ranges = _RangesInTurn(self, work, grid.chosen_range(weight, self.importance))
        kernels = grid.kernels(weight) if isinstance(self.factor, Tensor) else None
        if kernels is not None:
            unpruned = None if mask is None else mask[:, order].contiguous()
            _round_by_kernels(kernels, work, self.factor, ranges, unpruned)
        else:
            numbers, column_of = grid.groups[order].tolist(), order.tolist()

            def rounded(i: int, column: Tensor) -> Tensor:
                values = grid.round(column, ranges.of(numbers[i]))
                return masked_column(values, mask, column_of[i])

            decide_columns(work, self.factor, rounded)
        return work[:, order.argsort()], ranges.values


class _RangesInTurn:
    """Ranges of the groups of a weight during its rounding: chosen before, or at first use.

    `work`: the current weight, with its columns in the order of `rounding`. `values`: ranges of the
    weight before rounding (rows, groups), which are replaced at first use.
    """

    def __init__(self, rounding: ColumnRounding, work: Tensor, values: Tensor) -> None:
        self.rounding, self.work, self.values = rounding, work, values
        grid = rounding.grid
        is_chosen = rounding.by_importance or grid.is_whole or not grid.has_range
        self.begun = set(range(grid.count)) if is_chosen else set()

    def of(self, group: int) -> Tensor:
        """Return the range of a group in each row."""
        if group not in self.begun:
            self.begun.add(group)
            grid = self.rounding.grid
            inside = (grid.groups == group).nonzero().flatten()
            alone = replace(grid, groups=torch.zeros_like(inside), count=1)
            new = alone.chosen_range(self.work[:, inside], self.rounding.importance[inside])
            self.values[:, group] = new[:, 0]
        return self.values[:, group]


def _round_by_kernels(
    kernels: ColumnKernels,
    work: Tensor,
    factor: Tensor,
    ranges: _RangesInTurn,
    unpruned: Tensor | None,
) -> None:
    """Run `decide_columns` with GPU kernels; `unpruned` has the order of `work`."""
    grid, order = ranges.rounding.grid, ranges.rounding.order
    groups = grid.groups[order]
    numbers, scales = groups.tolist(), grid.element_scales(ranges.values)
    for inside in steps(work.shape[1], BLOCK):
        panel, here, after = factor[inside], work[:, inside], slice(inside.stop, None)
        block = ColumnBlock(
            here,
            panel[:, inside].contiguous(),
            scales,
            groups[inside].int(),
            here.new_empty(here.shape),
            None if unpruned is None else unpruned[:, inside],
        )
        first = inside.start
        while first < inside.stop:  # up to the next column whose range depends on those before
            if numbers[first] not in ranges.begun:
                scales[:, numbers[first]] = grid.element_scales(ranges.of(numbers[first]))
            later = range(first, inside.stop)
            last = next((i for i in later if numbers[i] not in ranges.begun), inside.stop)
            kernels.round(block, first - inside.start, last - inside.start)
            first = last
        work[:, after].addmm_(block.errors, panel[:, after], alpha=-1)


def masked_column(values: Tensor, mask: Tensor | None, column: int) -> Tensor:
    """Return the values of one column with zeros for pruned weights."""
    return values if mask is None else values.masked_fill(~mask[:, column], 0.0)


def damped(hessian: Tensor, damping: float) -> Tensor:
    """Return H with `damping` times the mean of its diagonal added to the diagonal."""
    result = without_dead(hessian.double()).clone()
    result.diagonal().add_(damping * result.diagonal().mean())
    return result


def compensating_weight(weight: Tensor, sums: InputSums, damping: float) -> Tensor:
    """Return the weight whose output on the current inputs comes closest to the float output.

    The least-squares step also fits the noise of a few rows. The halves of the data decide its
    length: the step of one half, scaled to be best on the other.
    """
    wide = weight.double()
    if sums.drift.dim() != 2:  # the inputs of the float model are not known
        return wide
    return wide + _supported_share(wide, sums, damping) * _step(wide, sums, damping)


def _step(weight: Tensor, sums: InputSums, damping: float) -> Tensor:
    hessian, drift = sums.hessian, sums.drift
    assert isinstance(hessian, Tensor) and isinstance(drift, Tensor), "the sums are in memory"
    step: Tensor = torch.linalg.solve(damped(hessian, damping), (weight @ drift).mT)
    return step.mT


def _supported_share(weight: Tensor, sums: InputSums, damping: float) -> float:
    """Return the share of a step that the data supports, from 0 to 1; 1 without halves."""
    gain = cost = 0.0
    for half, other in zip(sums.halves, reversed(sums.halves), strict=True):
        step = _step(weight, half, damping)
        gain += float((step * product(weight, other.drift)).sum())
        cost += output_error(step, other.hessian)
    return supported_share(gain, cost) if sums.halves else 1.0


def supported_share(gain: float, cost: float) -> float:
    """Return the share of a step whose halves have the gain and the cost, on the other half."""
    if cost == 0:
        return 1.0
    share = min(max(gain / cost, 0.0), 1.0)
    return 2 * share / (1 + share)  # a step from all rows has half the noise of one from a half


def output_error(difference: Tensor | StoredRows, hessian: Matrix) -> float:
    """Return the squared error of a layer's output, summed over the rows in H."""
    total = 0.0
    for rows in weight_slices(len(difference), hessian):
        d = difference[rows].double()
        total += float((product(d, hessian) * d).sum())
    return total
