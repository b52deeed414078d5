"""Square matrices in files, of which a few rows are in memory at a time.

The sums over the inputs of a wide layer are larger than the layer. Their products, factors and
inverses need a panel of rows at a time, so that the matrix itself can be a file.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

PANEL_BYTES = 48 << 20
"""Memory of the rows of a matrix that are read at a time: above the 32 MiB up to which the C
library may not return freed memory to the system."""


def steps(count: int, step: int) -> list[slice]:
    """Return slices of at most `step` that cover `count`.

    >>> steps(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def panel_rows(columns: int) -> int:
    """Return how many rows of `columns` numbers in double precision are read at a time."""
    return max(PANEL_BYTES // (torch.float64.itemsize * columns), 1)


class StoredRows:
    """Rows of equal length in a file of `folder`, which vanishes with this object."""

    def __init__(
        self, folder: Path, rows: int, columns: int, dtype: torch.dtype = torch.float64
    ) -> None:
        self.shape, self.dtype = (rows, columns), dtype
        # without a name: no kill leaves the file behind
        self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115
        self._row_bytes = columns * dtype.itemsize

    def rows(self, start: int, end: int) -> Tensor:
        """Return the rows from `start` to before `end`."""
        result = torch.empty(end - start, self.shape[1], dtype=self.dtype)
        left = memoryview(result.numpy().data).cast("B") if result.numel() else memoryview(b"")
        self._file.seek(start * self._row_bytes)
        while len(left):
            count = self._file.readinto(left)
            assert count, "rows are written before they are read"
            left = left[count:]
        return result

    def write(self, start: int, rows: Tensor) -> None:
        """Store `rows` from row `start` on."""
        self._file.seek(start * self._row_bytes)
        left = memoryview(rows.detach().to("cpu", self.dtype).contiguous().numpy().data).cast("B")
        while len(left):
            left = left[self._file.write(left) :]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, inside: slice) -> Tensor:
        return self.rows(inside.start, inside.stop)


class PanelMatrix(ABC):
    """Square matrix in double precision whose rows are read when they are used."""

    size: int

    @abstractmethod
    def rows(self, start: int, end: int) -> Tensor:
        """Return the rows from `start` to before `end`."""

    def dim(self) -> int:
        """Return the number of dimensions, as for a tensor."""
        return 2

    def slices(self) -> list[slice]:
        """Return the rows of each panel."""
        return steps(self.size, panel_rows(self.size))

    def panels(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows, a panel at a time."""
        for inside in self.slices():
            yield inside, self.rows(inside.start, inside.stop)

    def diagonal(self) -> Tensor:
        """Return the diagonal."""
        return self._diagonal

    @cached_property
    def _diagonal(self) -> Tensor:
        return torch.cat([panel[:, inside].diagonal() for inside, panel in self.panels()])

    def __add__(self, other: PanelMatrix) -> PanelMatrix:
        return PanelSum(self, other)


Matrix = Tensor | PanelMatrix
"""Square matrix in memory or in a file."""


class StoredMatrix(PanelMatrix):
    """Matrix in a file; `write` replaces rows."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self._stored = StoredRows(folder, size, size)

    def rows(self, start: int, end: int) -> Tensor:
        return self._stored.rows(start, end)

    def write(self, start: int, rows: Tensor) -> None:
        """Store `rows` from row `start` on."""
        self._stored.write(start, rows)


class LowerMatrix(PanelMatrix):
    """Matrix in a file that is zero right of the diagonal; each panel ends at its last row."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size, self._folder = size, folder
        self._parts: list[StoredRows] = []

    def append(self, panel: Tensor) -> None:
        """Store the next panel: its columns up to its own last row."""
        inside = self.slices()[len(self._parts)]
        part = StoredRows(self._folder, inside.stop - inside.start, inside.stop)
        part.write(0, panel)
        self._parts.append(part)

    def panel(self, number: int) -> Tensor:
        """Return a panel, with as many columns as it stores."""
        part = self._parts[number]
        return part.rows(0, part.shape[0])

    def rows(self, start: int, end: int) -> Tensor:
        result = torch.zeros(end - start, self.size, dtype=torch.float64)
        for inside, part in zip(self.slices(), self._parts, strict=True):
            first, last = max(start, inside.start), min(end, inside.stop)
            if first < last:
                own = part.rows(first - inside.start, last - inside.start)
                result[first - start : last - start, : inside.stop] = own
        return result


class PanelSum(PanelMatrix):
    """Sum of matrices, added panel by panel."""

    def __init__(self, *parts: PanelMatrix) -> None:
        self.size, self.parts = parts[0].size, parts

    def rows(self, start: int, end: int) -> Tensor:
        total = self.parts[0].rows(start, end)
        for part in self.parts[1:]:
            total += part.rows(start, end)
        return total


class LiftedMatrix(PanelMatrix):
    """Matrix with numbers added to its diagonal, and its rows and columns in another order."""

    def __init__(self, matrix: PanelMatrix, lift: Tensor, order: Tensor | None = None) -> None:
        self.size, self._matrix, self._lift, self._order = matrix.size, matrix, lift, order

    def rows(self, start: int, end: int) -> Tensor:
        if self._order is None:
            result = self._matrix.rows(start, end)
            result[:, start:end].diagonal().add_(self._lift[start:end])
            return result
        picked = self._order[start:end]
        result = torch.cat([self._matrix.rows(row, row + 1) for row in picked.tolist()])
        result = result[:, self._order]
        result[:, start:end].diagonal().add_(self._lift[picked])
        return result


class FlippedMatrix(PanelMatrix):
    """Matrix with its rows and columns in reverse order."""

    def __init__(self, matrix: PanelMatrix) -> None:
        self.size, self._matrix = matrix.size, matrix

    def rows(self, start: int, end: int) -> Tensor:
        return self._matrix.rows(self.size - end, self.size - start).flip(0, 1)


def rows_of(matrix: Matrix, start: int, end: int) -> Tensor:
    """Return the rows of a matrix from `start` to before `end`."""
    return matrix[start:end] if isinstance(matrix, Tensor) else matrix.rows(start, end)


def added(a: Matrix, b: Matrix) -> Matrix:
    """Return the sum of two matrices, both in memory or both in files."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a + b
    assert not isinstance(a, Tensor) and not isinstance(b, Tensor), "one is in memory"
    return a + b


def product(x: Tensor, matrix: Matrix) -> Tensor:
    """Return `x @ matrix`."""
    if isinstance(matrix, Tensor):
        return x @ matrix
    result = x.new_zeros(len(x), matrix.size)
    for inside, panel in matrix.panels():
        result.addmm_(x[:, inside], panel.to(x.device))
    return result


def weight_slices(rows: int, matrix: Matrix) -> list[slice]:
    """Return the rows of a weight that are multiplied with `matrix` at a time."""
    if isinstance(matrix, Tensor):
        return [slice(0, rows)]
    return steps(rows, panel_rows(matrix.size))


def stored_cholesky(matrix: PanelMatrix, folder: Path) -> LowerMatrix | None:
    """Return the lower Cholesky factor; None if the matrix is not positive definite."""
    lower = LowerMatrix(folder, matrix.size)
    slices = matrix.slices()
    for number, inside in enumerate(slices):
        start, end = inside.start, inside.stop
        panel = matrix.rows(start, end)[:, :end].clone()
        for before, columns in enumerate(slices[:number]):
            other = lower.panel(before)
            panel[:, columns] -= panel[:, : columns.start] @ other[:, : columns.start].mT
            panel[:, columns] = divided_by_transpose(panel[:, columns], other[:, columns])
        panel[:, start:] -= panel[:, :start] @ panel[:, :start].mT
        panel[:, start:], info = torch.linalg.cholesky_ex(panel[:, start:])
        if int(info) != 0:
            return None
        lower.append(panel)
    return lower


def divided_by_transpose(x: Tensor, lower: Tensor) -> Tensor:
    """Return x L⁻ᵀ."""
    result: Tensor = torch.linalg.solve_triangular(lower.mT, x, upper=True, left=False)
    return result


def stored_inverse(lower: LowerMatrix, folder: Path) -> LowerMatrix:
    """Return the inverse of a lower factor."""
    inverse = LowerMatrix(folder, lower.size)
    slices = lower.slices()
    for number, inside in enumerate(slices):
        start = inside.start
        own = lower.panel(number)
        panel = torch.zeros_like(own)
        for before, columns in enumerate(slices[:number]):
            panel[:, : columns.stop].addmm_(own[:, columns], inverse.panel(before), alpha=-1)
        panel[:, start:] = torch.eye(inside.stop - start, dtype=own.dtype)
        panel = torch.linalg.solve_triangular(own[:, start:], panel, upper=False)
        inverse.append(panel)
    return inverse


def solved(x: Tensor, lower: LowerMatrix) -> Tensor:
    """Return x (L Lᵀ)⁻¹."""
    result = x.clone()
    slices = lower.slices()
    for number, inside in enumerate(slices):
        own = lower.panel(number)
        part = result[:, inside] - result[:, : inside.start] @ own[:, : inside.start].mT
        result[:, inside] = divided_by_transpose(part, own[:, inside])
    for number, inside in reversed([*enumerate(slices)]):
        own = lower.panel(number)
        part = torch.linalg.solve_triangular(
            own[:, inside], result[:, inside], upper=False, left=False
        )
        result[:, inside] = part
        result[:, : inside.start] -= part @ own[:, : inside.start]
    return result
