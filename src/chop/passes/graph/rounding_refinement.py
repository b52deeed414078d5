"""Lower the error of a rounded weight further: ranges fitted to its integers, elements moved.

The error is that of `gptq_rounding`, (W - Q) H (W - Q)ᵀ. Rounding with feedback decides each column
once; here every column is decided again with all others as they have become, and where integers are
multiplied by scales, the scales are those that fit the integers best.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.nn.quantizers import ScaleInteger
from chop.passes.graph.gptq_rounding import output_error
from chop.passes.graph.weight_grid import WeightGrid

CHUNK = 2**24
"""Elements that fitting the scales of some rows takes at once."""


def refined(
    rounded: Tensor, ranges: Tensor, weight: Tensor, hessian: Tensor, grid: WeightGrid, rounds: int
) -> tuple[Tensor, Tensor]:
    """The rounded weight and its ranges after so many rounds, fewer where one lowers nothing."""
    least = output_error(rounded - weight, hessian)
    for _ in range(rounds):
        values, fitted = rounded, ranges
        if isinstance(grid.quantizer, ScaleInteger):
            values, fitted = with_fitted_scales(rounded, ranges, weight, hessian, grid)
        values = moved_elements(values, fitted, weight, hessian, grid)
        error = output_error(values - weight, hessian)
        if not error < least:
            break
        rounded, ranges, least = values, fitted, error
    return rounded, ranges


def moved_elements(
    rounded: Tensor, ranges: Tensor, weight: Tensor, hessian: Tensor, grid: WeightGrid
) -> Tensor:
    """Each column in turn at the values of its grid that are best beside all others."""
    gradient = (rounded - weight) @ hessian
    result = rounded.clone()
    for i, group in enumerate(grid.groups.tolist()):
        # the parabola through one element has its minimum here, and its nearest value is the best
        best = result[:, i] - gradient[:, i] / hessian[i, i]
        moved = grid.round(best, ranges[:, group])
        step = moved - result[:, i]
        if step.any():
            gradient += step[:, None] * hessian[i]
            result[:, i] = moved
    return result


def with_fitted_scales(
    rounded: Tensor, ranges: Tensor, weight: Tensor, hessian: Tensor, grid: WeightGrid
) -> tuple[Tensor, Tensor]:
    """The same integers at the scales with the least error, and the ranges these come from."""
    assert isinstance(grid.quantizer, ScaleInteger), f"{grid.quantizer} has no scale"
    scales = grid.scales(ranges)
    whole = (rounded / scales[:, grid.groups]).round()
    parts = [t.split_with_sizes(_parts(len(t), grid)) for t in (whole, weight)]
    products = [_normal_equations(q, w, hessian, grid) for q, w in zip(*parts, strict=True)]
    matrix = torch.cat([m for m, _ in products])
    vector = torch.cat([v for _, v in products])
    if grid.is_whole:
        matrix, vector = matrix.sum(0, keepdim=True), vector.sum(0, keepdim=True)
    fitted = _solved(matrix, vector).expand_as(scales)
    fitted = torch.where(fitted == 0, scales, fitted)  # a group of zeros keeps its scale
    return whole * fitted[:, grid.groups], fitted * grid.quantizer.integers[1]


def _parts(rows: int, grid: WeightGrid) -> list[int]:
    """How many rows are taken at once, as often as it takes."""
    most = max(1, CHUNK // (len(grid.groups) * grid.count))
    return [min(most, rows - start) for start in range(0, rows, most)]


def _normal_equations(
    whole: Tensor, weight: Tensor, hessian: Tensor, grid: WeightGrid
) -> tuple[Tensor, Tensor]:
    """For each row, the products of its groups with each other and with the weight."""
    rows, columns = whole.shape
    apart = whole.new_zeros(rows, columns, grid.count)
    apart.scatter_(2, grid.groups[None, :, None].expand(rows, -1, 1), whole[:, :, None])
    applied = (hessian @ apart.transpose(0, 1).reshape(columns, -1)).reshape(columns, rows, -1)
    applied = applied.transpose(0, 1)
    return apart.mT @ applied, (applied.mT @ weight[:, :, None])[:, :, 0]


def _solved(matrix: Tensor, vector: Tensor) -> Tensor:
    """The solution; 0 for a group without integers."""
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    used = diagonal > 0
    # as good as nothing, for groups whose inputs always move together
    lift = torch.where(used, 1e-9 * diagonal, 1.0)
    found: Tensor = torch.linalg.solve(matrix + torch.diag_embed(lift), vector)
    return torch.where(used, found, 0.0)
