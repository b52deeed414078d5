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
    """The rounded weight, and the range of each group; zero where `mask` is False.

    With `by_importance` columns go from the largest diagonal of H to the smallest, and ranges are
    chosen before; else they go from left to right, and the range of a group is chosen when its
    first column comes, from what the weights are by then.
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
    begun: set[int] = set(group) if by_importance or grid.is_whole else set()

    def rounded(i: int, column: Tensor) -> Tensor:
        if group[i] not in begun and grid.has_range:
            begun.add(group[i])
            _choose_again(grid, ranges, group[i], work, importance)
        return kept(grid.round(column, ranges[:, group[i]]), mask, column_of[i])

    decide_columns(work, factor, rounded)
    return work[:, order.argsort()], ranges


def kept(values: Tensor, mask: Tensor | None, column: int) -> Tensor:
    """Values of one column, with zeros where a weight is pruned."""
    return values if mask is None else values.masked_fill(~mask[:, column], 0.0)


def _choose_again(
    grid: WeightGrid, ranges: Tensor, group: int, work: Tensor, importance: Tensor
) -> None:
    """Choose the range of one group from the weights as they are now."""
    inside = (grid.groups == group).nonzero().flatten()
    alone = WeightGrid(grid.quantizer, torch.zeros_like(inside), 1)
    ranges[:, group] = alone.chosen_range(work[:, inside], importance[inside])[:, 0]


def damped(hessian: Tensor, damping: float) -> Tensor:
    """H with a share of its mean added to the diagonal: a few inputs are not all there are."""
    result = without_dead(hessian.double()).clone()
    result.diagonal().add_(damping * result.diagonal().mean())
    return result


def making_up_for(weight: Tensor, sums: InputSums, damping: float) -> Tensor:
    """The weight whose output on the inputs of now comes closest to the output there was.

    What comes closest on a few rows follows their noise too. How far to go is said by the halves of
    the data: the move that one half asks for, taken as far as is best on the other.
    """
    wide = weight.double()
    return wide + _share_that_holds(wide, sums, damping) * _move(wide, sums, damping)


def _move(weight: Tensor, sums: InputSums, damping: float) -> Tensor:
    """The step to the least squared error on the rows of `sums`."""
    found: Tensor = torch.linalg.solve(damped(sums.hessian, damping), (weight @ sums.drift).mT)
    return found.mT


def _share_that_holds(weight: Tensor, sums: InputSums, damping: float) -> float:
    """The share of a move that the data supports, between 0 and 1; 1 where there are no halves."""
    gain = cost = 0.0
    for half, other in zip(sums.halves, reversed(sums.halves), strict=True):
        move = _move(weight, half, damping)
        gain += float((move * (weight @ other.drift)).sum())
        cost += output_error(move, other.hessian)
    if not sums.halves or cost == 0:
        return 1.0
    share = min(max(gain / cost, 0.0), 1.0)
    return 2 * share / (1 + share)  # a move from all rows has half the noise of one from a half


def output_error(difference: Tensor, hessian: Tensor) -> float:
    """The squared error of a layer's output, summed over the data that H was made of."""
    d = difference.double()
    return float(((d @ hessian.double()) * d).sum())
