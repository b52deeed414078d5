"""Datasets in memory: tensors of equal length, by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from chop.arguments import MAPPING, an, check
from chop.errors import DataError

TENSOR = an(Tensor, "a tensor")


class ArrayDataset(Dataset[dict[str, Tensor]]):
    """Rows over `columns`: `dataset[i]` is a dict with one value for each column."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        check("ArrayDataset: columns", MAPPING, columns, DataError)
        for name, column in columns.items():
            check(f"ArrayDataset: column '{name}'", TENSOR, column, DataError)
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"ArrayDataset: columns must have one length, got {lengths}.")
        self.columns = dict(columns)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if isinstance(index, str):
            raise DataError(
                f"ArrayDataset: rows are counted, got '{index}'. Columns, under .columns: "
                f"{', '.join(self.columns)}."
            )
        return {name: column[index] for name, column in self.columns.items()}

    def select(self, indices: Sequence[int] | range) -> ArrayDataset:
        """Return the rows `indices`, in that order."""
        rows = torch.as_tensor(list(indices), dtype=torch.long)
        return ArrayDataset({name: column[rows] for name, column in self.columns.items()})
