"""GPTQ of a weight whose sums over the inputs are in files, a few rows of the weight at a time.

The rows of a weight are rounded independently of each other, given the sums. What depends on all
rows is their total error: the better order, the number of refinements, and the length of the step
that compensates for earlier layers. These are decided between two runs over the rows, so that the
result is that of `column_feedback` and `rounding_refinement` on the whole weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chop.errors import PassError
from chop.passes.ptq.observe.row_sums import InputSums
from chop.passes.ptq.observe.stored_matrix import (
    FlippedMatrix,
    LiftedMatrix,
    LowerMatrix,
    Matrix,
    PanelMatrix,
    StoredRows,
    panel_rows,
    product,
    solved,
    steps,
    stored_cholesky,
    stored_inverse,
)
from chop.passes.ptq.solve.column_feedback import (
    ColumnRounding,
    column_order,
    more_damping,
    output_error,
    supported_share,
    without_dead_diagonal,
)
from chop.passes.ptq.solve.rounding_refinement import moved_elements, with_fitted_scales
from chop.passes.ptq.solve.weight_grid import WeightGrid

EQUATIONS_BYTES = 256 << 20
"""Memory of the equations of fitted scales, which have one matrix of groups for each row."""
EQUATION_COPIES = 4
"""Copies of these matrices while they are solved, measured."""


@dataclass(frozen=True)
class SlicedSettings:
    """Settings of GPTQ, as in `GptqArgs`; `folder` has the factors and the values of each step."""

    folder: Path
    damping: float
    rounds: int
    is_float: bool


@dataclass
class _Rounded:
    """Rounded rows in a file, the range of each of their groups, and their error."""

    values: StoredRows
    ranges: Tensor
    error: float = 0.0


def slice_rows(grid: WeightGrid, rows: int, columns: int) -> int:
    """Return how many rows of a weight are rounded at a time."""
    if grid.is_whole or grid.tile_rows >= rows:
        return rows
    step = panel_rows(columns)
    if grid.quantizer.scaled is not None:
        per_row = EQUATION_COPIES * torch.float64.itemsize * grid.count**2
        step = min(step, max(EQUATIONS_BYTES // per_row, 1))
    return max(step // grid.tile_rows, 1) * grid.tile_rows


class SlicedRounding:
    """Rounding of one weight (rows, columns); `mask` is False where it is pruned."""

    def __init__(
        self, weight: Tensor, mask: Tensor | None, grid: WeightGrid, settings: SlicedSettings
    ) -> None:
        self.weight, self.mask, self.grid, self.settings = weight, mask, grid, settings
        self.slices = steps(len(weight), slice_rows(grid, *weight.shape))

    def __call__(
        self, sums: InputSums, orders: tuple[bool, ...]
    ) -> tuple[Tensor, Tensor, Tensor | StoredRows, bool]:
        """Return the rounded weight, its ranges, its target, and the best of `orders`."""
        assert isinstance(sums.hessian, PanelMatrix), "the sums are in files"
        target = self._target(sums)
        choices = {way: self._rounded(target, sums.hessian, way) for way in orders}
        best = min(choices, key=lambda way: choices[way].error)
        rounded = choices.pop(best)
        choices.clear()  # their files vanish
        rounded = self._refined(rounded, target, sums.hessian)
        ranges = rounded.ranges.to(self.weight.dtype)
        values = torch.empty_like(self.weight)
        for rows in self.slices:
            values[rows] = rounded.values[rows]
        self._as_stored(values, ranges)
        return values, ranges, target, best

    def _target(self, sums: InputSums) -> Tensor | StoredRows:
        """Return the weight whose outputs are approximated."""
        if not self.settings.is_float or not isinstance(sums.drift, PanelMatrix):
            return self.weight
        share = supported_share(*self._gain_and_cost(sums)) if sums.halves else 1.0
        lower, stored = self._factor(sums.hessian), self._new_rows()
        for rows in self.slices:
            wide = self.weight[rows].double()
            stored.write(rows.start, wide + share * solved(product(wide, sums.drift), lower))
        return stored

    def _gain_and_cost(self, sums: InputSums) -> tuple[float, float]:
        gain = cost = 0.0
        for half, other in zip(sums.halves, reversed(sums.halves), strict=True):
            lower = self._factor(half.hessian)
            for rows in self.slices:
                wide = self.weight[rows].double()
                step = solved(product(wide, half.drift), lower)
                gain += float((step * product(wide, other.drift)).sum())
                cost += output_error(step, other.hessian)
        return gain, cost

    def _new_rows(self) -> StoredRows:
        return StoredRows(self.settings.folder, *self.weight.shape)

    def _rounded(
        self, target: Tensor | StoredRows, hessian: PanelMatrix, by_importance: bool
    ) -> _Rounded:
        importance = without_dead_diagonal(hessian.diagonal())
        order = column_order(importance, by_importance=by_importance)
        # H = R Rᵀ with R upper, so that R⁻¹ is the upper factor of the inverse
        lower = self._factor(hessian, order.flip(0))
        factor = FlippedMatrix(stored_inverse(lower, self.settings.folder))
        columns = ColumnRounding(self.grid, importance, factor, order, by_importance=by_importance)

        def decide(rows: slice, goal: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            return columns(goal, mask)

        return self._each(decide, target, hessian)

    def _refined(
        self, rounded: _Rounded, target: Tensor | StoredRows, hessian: PanelMatrix
    ) -> _Rounded:
        """Return the result of `rounding_refinement.refined`."""
        lifted = LiftedMatrix(hessian, _lift(hessian, self.settings.damping))
        rounded.error = sum(
            output_error(rounded.values[rows] - target[rows], lifted) for rows in self.slices
        )
        for _ in range(self.settings.rounds):
            now = rounded

            def decide(
                rows: slice, goal: Tensor, mask: Tensor | None, now: _Rounded = now
            ) -> tuple[Tensor, Tensor]:
                values, ranges = now.values[rows], now.ranges[rows]
                if self.grid.quantizer.scaled is not None:
                    values, ranges = with_fitted_scales(values, ranges, goal, lifted, self.grid)
                moved = moved_elements(values, ranges, goal, lifted, self.grid, mask)
                return moved, ranges

            again = self._each(decide, target, lifted)
            if not again.error < rounded.error:
                break
            rounded = again
        return rounded

    def _each(
        self,
        decide: Callable[[slice, Tensor, Tensor | None], tuple[Tensor, Tensor]],
        target: Tensor | StoredRows,
        hessian: PanelMatrix,
    ) -> _Rounded:
        """Return the values and ranges that `decide` makes of each slice of rows."""
        result = _Rounded(self._new_rows(), self.weight.new_empty(0))
        ranges = []
        for rows in self.slices:
            goal = target[rows].double()
            values, own = decide(rows, goal, None if self.mask is None else self.mask[rows])
            result.values.write(rows.start, values)
            result.error += output_error(values - goal, hessian)
            ranges.append(own)
        result.ranges = torch.cat(ranges)
        return result

    def _factor(self, hessian: Matrix, order: Tensor | None = None) -> LowerMatrix:
        """Return the Cholesky factor of a damped matrix; raise the damping until it has one."""
        assert isinstance(hessian, PanelMatrix), "the sums are in files"
        if not hessian.diagonal().isfinite().all():
            raise PassError("the sums over the inputs of a layer have NaN or infinity.")
        damping = self.settings.damping
        while True:
            lifted = LiftedMatrix(hessian, _lift(hessian, damping), order)
            lower = stored_cholesky(lifted, self.settings.folder)
            if lower is not None:
                return lower
            damping = more_damping(damping)

    def _as_stored(self, values: Tensor, ranges: Tensor) -> None:
        """Round a rounded weight in place, as `WeightGrid.as_stored`."""
        for grid in self.grid.measured_again(values):
            for rows in self.slices:
                values[rows] = grid.stored_rows(values[rows], ranges[rows])


def _lift(hessian: PanelMatrix, damping: float) -> Tensor:
    """Return what `column_feedback.damped` adds to the diagonal."""
    diagonal = hessian.diagonal()
    alive = without_dead_diagonal(diagonal)
    return alive - diagonal + damping * alive.mean()
