"""A dataset held in memory: tensors of equal length, by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from chop.errors import DataError


class ArrayDataset(Dataset[dict[str, Tensor]]):
    """Rows over `columns`: `dataset[i]` is a dict with one value for each column."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"ArrayDataset: columns must have one length, got {lengths}.")
        self.columns = dict(columns)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    def select(self, indices: Sequence[int] | range) -> ArrayDataset:
        """The rows `indices`, in that order."""
        rows = torch.as_tensor(list(indices), dtype=torch.long)
        return ArrayDataset({name: column[rows] for name, column in self.columns.items()})
