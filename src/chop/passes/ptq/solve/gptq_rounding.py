"""GPTQ: weights rounded column by column, so that the layer's output changes least."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.passes.ptq.observe.input_sums import InputSums
from chop.passes.ptq.solve.column_feedback import decide_columns, inverse_factor, without_dead
from chop.passes.ptq.solve.weight_grid import WeightGrid


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
    weight, hessian = weight.double(), without_dead(hessian.double())
    importance = hessian.diagonal()
    order = torch.arange(weight.shape[1], device=weight.device)
    ranges = grid.chosen_range(weight, importance)
    if by_importance:
        order = importance.argsort(descending=True, stable=True)
    factor = inverse_factor(hessian[order][:, order], damping)
    work = weight[:, order].clone()
    group, column_of = grid.groups[order].tolist(), order.tolist()
    begun = set(group) if by_importance or grid.is_whole or not grid.has_range else set()

    def rounded(i: int, column: Tensor) -> Tensor:
        if group[i] not in begun:
            begun.add(group[i])
            inside = (grid.groups == group[i]).nonzero().flatten()
            alone = WeightGrid(grid.quantizer, torch.zeros_like(inside), 1)
            new = alone.chosen_range(work[:, inside], importance[inside])
            ranges[:, group[i]] = new[:, 0]
        return masked_column(grid.round(column, ranges[:, group[i]]), mask, column_of[i])

    decide_columns(work, factor, rounded)
    return work[:, order.argsort()], ranges


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
    return wide + _supported_share(wide, sums, damping) * _step(wide, sums, damping)


def _step(weight: Tensor, sums: InputSums, damping: float) -> Tensor:
    step: Tensor = torch.linalg.solve(damped(sums.hessian, damping), (weight @ sums.drift).mT)
    return step.mT


def _supported_share(weight: Tensor, sums: InputSums, damping: float) -> float:
    """Return the share of a step that the data supports, from 0 to 1; 1 without halves."""
    gain = cost = 0.0
    for half, other in zip(sums.halves, reversed(sums.halves), strict=True):
        step = _step(weight, half, damping)
        gain += float((step * (weight @ other.drift)).sum())
        cost += output_error(step, other.hessian)
    if not sums.halves or cost == 0:
        return 1.0
    share = min(max(gain / cost, 0.0), 1.0)
    return 2 * share / (1 + share)  # a step from all rows has half the noise of one from a half


def output_error(difference: Tensor, hessian: Tensor) -> float:
    """Return the squared error of a layer's output, summed over the rows in H."""
    d = difference.double()
    return float(((d @ hessian.double()) * d).sum())
