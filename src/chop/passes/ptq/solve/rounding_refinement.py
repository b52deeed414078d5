"""Refinement of a rounded weight: ranges fitted to its integers, and elements moved.

The error is that of `column_feedback`, (W - Q) H (W - Q)ᵀ. Rounding with feedback decides each
column once. Refinement decides every column again, given the current values of all others. For
integers with scales, it also fits the scales to the integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.passes.ptq.observe.stored_matrix import Matrix, product, rows_of, steps
from chop.passes.ptq.solve.column_feedback import BLOCK, masked_column, output_error
from chop.passes.ptq.solve.column_kernels import ColumnBlock
from chop.passes.ptq.solve.weight_grid import WeightGrid


def refined(
    rounded: Tensor,
    ranges: Tensor,
    weight: Tensor,
    hessian: Tensor,
    grid: WeightGrid,
    rounds: int,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weight and its ranges after `rounds` rounds; stop when a round lowers nothing.

    Weights that `mask` prunes stay zero.
    """
    least = output_error(rounded - weight, hessian)
    for _ in range(rounds):
        values, fitted = rounded, ranges
        if grid.quantizer.scaled is not None:
            values, fitted = with_fitted_scales(rounded, ranges, weight, hessian, grid)
        values = moved_elements(values, fitted, weight, hessian, grid, mask)
        error = output_error(values - weight, hessian)
        if not error < least:
            break
        rounded, ranges, least = values, fitted, error
    return rounded, ranges


def moved_elements(
    rounded: Tensor,
    ranges: Tensor,
    weight: Tensor,
    hessian: Matrix,
    grid: WeightGrid,
    mask: Tensor | None = None,
) -> Tensor:
    """Set each column in turn to the values of its grid that are best given all others."""
    gradient = product(rounded - weight, hessian)
    result = rounded.clone()
    kernels = grid.kernels(rounded)
    scales = None if kernels is None else grid.element_scales(ranges)
    for inside in steps(rounded.shape[1], BLOCK):
        panel = rows_of(hessian, inside.start, inside.stop)
        near, across = gradient[:, inside].clone(), panel[:, inside]
        if kernels is None or scales is None:
            _move_columns(result, near, across, ranges, grid, mask, inside.start)
        else:
            unpruned = None if mask is None else mask[:, inside]
            group = grid.groups[inside].int()
            kernels.move(
                ColumnBlock(result[:, inside], across.contiguous(), scales, group, near, unpruned)
            )
        gradient += (result[:, inside] - rounded[:, inside]) @ panel
    return result


def _move_columns(
    result: Tensor,
    near: Tensor,
    across: Tensor,
    ranges: Tensor,
    grid: WeightGrid,
    mask: Tensor | None,
    start: int,
) -> None:
    """Decide the columns from `start` on again; `near` are their gradients."""
    group = grid.groups.tolist()
    for i in range(near.shape[1]):
        column = result[:, start + i]
        # a parabola in one element: the grid's value nearest to its minimum is the best
        best = column - near[:, i] / across[i, i]
        moved = masked_column(grid.round(best, ranges[:, group[start + i]]), mask, start + i)
        near += (moved - column)[:, None] * across[i]
        result[:, start + i] = moved


def with_fitted_scales(
    rounded: Tensor, ranges: Tensor, weight: Tensor, hessian: Matrix, grid: WeightGrid
) -> tuple[Tensor, Tensor]:
    """Return the same integers at the scales with the least error, and the ranges of these."""
    form = grid.quantizer.scaled
    assert form is not None, f"{grid.quantizer} has no scale"
    scales = grid.scales(ranges)
    whole = (rounded / scales[:, grid.groups]).round()
    matrix, vector = _normal_equations(whole, weight, hessian, grid)
    if grid.is_whole:
        matrix, vector = matrix.sum(0, keepdim=True), vector.sum(0, keepdim=True)
    fitted = _solve(matrix, vector).expand_as(scales)
    fitted = torch.where(fitted == 0, scales, fitted)  # a group of zeros keeps its scale
    return whole * fitted[:, grid.groups], fitted * form.integers[1]


def _normal_equations(
    whole: Tensor, weight: Tensor, hessian: Matrix, grid: WeightGrid
) -> tuple[Tensor, Tensor]:
    """Return the products of each row's groups with each other and with the weight."""
    matrix = whole.new_zeros(len(whole), grid.count, grid.count)
    vector = whole.new_zeros(len(whole), grid.count)
    for group in range(grid.count):
        inside = (grid.groups == group).nonzero().flatten()
        applied = whole[:, inside] @ rows_of(hessian, int(inside[0]), int(inside[-1]) + 1)
        matrix[:, group].index_add_(1, grid.groups, applied * whole)
        vector[:, group] = (applied * weight).sum(1)
    return matrix, vector


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    """Solve the equations; return 0 for a group without integers."""
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    used = diagonal > 0
    # negligible, but makes groups solvable whose inputs always move together
    lift = torch.where(used, 1e-9 * diagonal, 1.0)
    solution: Tensor = torch.linalg.solve(matrix + torch.diag_embed(lift), vector)
    return torch.where(used, solution, 0.0)
