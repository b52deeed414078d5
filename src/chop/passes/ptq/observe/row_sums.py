"""Sums over the rows that multiply a weight."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace

from torch import Tensor

from chop.passes.ptq.observe.held_back import RowSplit, fitted_rows
from chop.passes.ptq.observe.stored_matrix import Matrix, added, product, weight_slices


@dataclass(frozen=True)
class InputSums:
    """Sums over all rows x that multiply a weight: x xᵀ, (x before - x) xᵀ, x, x before.

    x is the current input in its format; x before is the input in the float model. `rows`: number
    of rows. `halves`: the sums over each half of the rows, to test a step of one on the other.
    `held_back`: the sums over rows that are held back from the others, to test the result; None if
    there are too few rows.
    """

    hessian: Matrix
    drift: Matrix
    total: Tensor
    total_before: Tensor
    rows: int
    halves: tuple[InputSums, ...] = ()
    held_back: InputSums | None = None

    def __add__(self, other: InputSums) -> InputSums:
        """Return the sums over the rows of both; halves are added half by half."""
        halves = tuple(a + b for a, b in zip(self.halves, other.halves, strict=True))
        held_back = [sums for sums in (self.held_back, other.held_back) if sums is not None]
        return InputSums(
            added(self.hessian, other.hessian),
            added(self.drift, other.drift),
            self.total + other.total,
            self.total_before + other.total_before,
            self.rows + other.rows,
            halves,
            functools.reduce(operator.add, held_back) if held_back else None,
        )

    def __iadd__(self, other: InputSums) -> InputSums:
        """Return the sums over the rows of both; the tensors of `self` are reused for them."""
        assert isinstance(self.hessian, Tensor) and isinstance(self.drift, Tensor)
        assert isinstance(other.hessian, Tensor) and isinstance(other.drift, Tensor)
        halves = tuple(a.__iadd__(b) for a, b in zip(self.halves, other.halves, strict=True))
        held_back = self.held_back
        if held_back is not None and other.held_back is not None:
            held_back += other.held_back
        return InputSums(
            self.hessian.add_(other.hessian),
            self.drift.add_(other.drift),
            self.total + other.total,
            self.total_before + other.total_before,
            self.rows + other.rows,
            halves,
            other.held_back if held_back is None else held_back,
        )

    @property
    def split(self) -> RowSplit[InputSums]:
        """The sums over the fitted rows, the held-back rows and all rows."""
        if self.held_back is None:
            return RowSplit(self)
        alone = replace(self, halves=(), held_back=None)
        whole = replace(alone + self.held_back, halves=self.halves)
        return RowSplit(self, self.held_back, whole)

    def error(self, rounded: Tensor, weight: Tensor) -> float:
        """Return the squared error of a layer's outputs, up to a constant of the layer.

        The outputs of `rounded` on the current inputs are compared with those of `weight` on the
        inputs before.
        """
        parts = weight_slices(len(weight), self.hessian)
        return sum(self._error(rounded[rows], weight[rows].double()) for rows in parts)

    def _error(self, rounded: Tensor, weight: Tensor) -> float:
        gap = weight - rounded.double()
        own = (product(gap, self.hessian) * gap).sum()
        has_drift = self.drift.dim() == 2
        drift = 2 * (product(weight, self.drift) * gap).sum() if has_drift else 0.0
        return float(own + drift)


def sums_of(rows: Tensor, before: Tensor | None) -> InputSums:
    """Return the sums over the rows of one batch, of which the last are held back."""
    fitted = fitted_rows(len(rows))
    sums = plain_sums(rows[:fitted], None if before is None else before[:fitted])
    if fitted == len(rows):
        return sums
    held_back = plain_sums(rows[fitted:], None if before is None else before[fitted:])
    return replace(sums, held_back=replace(held_back, halves=()))


def plain_sums(rows: Tensor, before: Tensor | None) -> InputSums:
    """Return the sums over rows; with `before` also those of their halves."""
    if before is None:
        zero, total = rows.new_zeros(1).double(), rows.sum(0).double()
        return InputSums((rows.T @ rows).double(), zero, total, total, len(rows))
    half = (len(rows) + 1) // 2
    parts = tuple(
        InputSums(
            (now.T @ now).double(),
            ((old - now).T @ now).double(),
            now.sum(0).double(),
            old.sum(0).double(),
            len(now),
        )
        for now, old in zip((rows[:half], rows[half:]), (before[:half], before[half:]), strict=True)
    )
    return replace(parts[0] + parts[1], halves=parts)
