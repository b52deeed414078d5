"""Sums over the inputs of a wide layer, in files.

The rows of all batches are stored first. Then each panel of the sums is computed from all rows, so
that only a panel of one matrix and the rows of one batch are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from chop.passes.ptq.observe.held_back import fitted_rows
from chop.passes.ptq.observe.row_sums import InputSums
from chop.passes.ptq.observe.stored_matrix import (
    StoredMatrix,
    StoredRows,
    added,
    panel_rows,
    steps,
)

SUMS_BYTES = 128 << 20
"""Memory that the solver of a layer takes before its sums are stored in files."""
MATRICES = {True: 8, False: 3}
"""Matrices of (columns, columns) of the sums of a layer, with and without the rows before."""
WEIGHTS = 10
"""Copies of a weight in double precision while it is rounded as a whole, measured."""


def are_stored(rows: int, columns: int, *, before: bool) -> bool:
    """Return True if the sums of a layer and the copies of its weight are large."""
    numbers = MATRICES[before] * columns**2 + WEIGHTS * rows * columns
    return numbers * torch.float64.itemsize > SUMS_BYTES


@dataclass
class _Part:
    """Rows of one half, of the held-back rows, or of all experts: a batch is a chunk of rows."""

    now: list[StoredRows] = field(default_factory=list)
    gap: list[StoredRows] = field(default_factory=list)
    total: Tensor | None = None
    total_before: Tensor | None = None
    count: int = 0

    def add(self, folder: Path, now: Tensor, before: Tensor | None) -> None:
        """Store the rows of one batch."""
        if not len(now):
            return
        total = now.sum(0).double()
        total_before = total if before is None else before.sum(0).double()
        if self.total is None or self.total_before is None:
            self.total, self.total_before = total, total_before
        else:
            self.total, self.total_before = self.total + total, self.total_before + total_before
        self.count += len(now)
        self.now.append(_stored(folder, now))
        if before is not None:
            self.gap.append(_stored(folder, before - now))

    def sums(self, folder: Path) -> InputSums:
        """Return the sums over the rows, which are dropped."""
        assert self.total is not None and self.total_before is not None, "a part has rows"
        drift = _products(folder, self.gap, self.now) if self.gap else self.total.new_zeros(1)
        hessian = _products(folder, self.now, self.now)
        self.now, self.gap = [], []
        return InputSums(hessian, drift, self.total, self.total_before, self.count)


def _stored(folder: Path, rows: Tensor) -> StoredRows:
    stored = StoredRows(folder, len(rows), rows.shape[1], torch.float32)
    stored.write(0, rows)
    return stored


def _products(folder: Path, left: list[StoredRows], right: list[StoredRows]) -> StoredMatrix:
    """Return the sum of leftᵀ right over the batches, as `chop.passes.ptq.observe.input_sums`."""
    size = right[0].shape[1]
    result = StoredMatrix(folder, size)
    for inside in steps(size, panel_rows(size)):
        panel = torch.zeros(inside.stop - inside.start, size, dtype=torch.float64)
        for a, b in zip(left, right, strict=True):
            rows = b.rows(0, b.shape[0])
            own = rows if a is b else a.rows(0, a.shape[0])
            panel += own[:, inside].mT @ rows
        result.write(inside.start, panel)
    return result


class StoredSums:
    """Sums over the inputs of one layer, in files of `folder`; batches are added one by one.

    `holds_back`: the last rows of each batch are left out, to test the result.
    """

    def __init__(self, folder: Path, *, holds_back: bool) -> None:
        self.folder, self.holds_back = folder, holds_back
        self._halves, self._held_back, self._others = (_Part(), _Part()), _Part(), _Part()

    def add(self, rows: Tensor, before: Tensor | None) -> None:
        """Add the rows of one batch."""
        end = fitted_rows(len(rows)) if self.holds_back else len(rows)
        half = end if before is None else (end + 1) // 2
        borders = ((0, half), (half, end), (end, len(rows)))
        for part, (first, last) in zip((*self._halves, self._held_back), borders, strict=True):
            part.add(self.folder, rows[first:last], None if before is None else before[first:last])

    def add_others(self, rows: Tensor) -> None:
        """Add rows of other experts: they count for the products, not for the tests."""
        self._others.add(self.folder, rows, None)

    def result(self) -> InputSums:
        """Return the sums over all rows."""
        halves = [part.sums(self.folder) for part in self._halves if part.count]
        if not halves:
            sums = self._others.sums(self.folder)
            return InputSums(sums.hessian, sums.drift, sums.total, sums.total_before, 0)
        has_before = halves[0].drift.dim() == 2
        sums = halves[0] if len(halves) == 1 else halves[0] + halves[1]
        hessian, total = sums.hessian, sums.total
        if self._others.count:
            every = self._others.sums(self.folder)
            hessian, total = added(hessian, every.hessian), total + every.total
        held_back = self._held_back.sums(self.folder) if self._held_back.count else None
        own = tuple(halves) if has_before and len(halves) == len(self._halves) else ()
        before = total if self._others.count else sums.total_before
        return InputSums(hessian, sums.drift, total, before, sums.rows, own, held_back)
