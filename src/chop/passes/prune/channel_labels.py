"""Labels for channels: elements that must stay or go together have the same label.

Every index of every dimension of a tensor has a label, a small number. Coupling two dimensions
ties their labels index by index; indices that may not be removed are tied to `FROZEN`. A view that
splits a dimension into heads ties the labels within each head. After all nodes were visited, tied
labels form one group: remove its indices from every tensor, and all shapes still fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
FROZEN = 0


@dataclass(frozen=True)
class Axes:
    """Labels of a tensor: one array per dimension."""

    dims: tuple[Labels, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tensor."""
        return tuple(len(dim) for dim in self.dims)

    def __len__(self) -> int:
        return len(self.dims)


def frozen_axes(shape: Iterable[int]) -> Axes:
    """Return the axes of a tensor of which nothing may be removed."""
    return Axes(tuple(frozen_dim(size) for size in shape))


def frozen_dim(size: int) -> Labels:
    """Return the labels of a dimension of which nothing may be removed."""
    return np.full(size, FROZEN, dtype=np.int64)


class LabelSet:
    """Labels and the ties between them (a union-find structure)."""

    def __init__(self) -> None:
        self._parent = [FROZEN]

    def fresh(self, size: int) -> Labels:
        """Return labels that are tied to no others."""
        start = len(self._parent)
        self._parent.extend(range(start, start + size))
        return np.arange(start, start + size, dtype=np.int64)

    def find(self, label: int) -> int:
        """Return the label that represents all that are tied to `label`."""
        parent = self._parent
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    def tie(self, first: Labels, second: Labels) -> None:
        """Tie two dimensions index by index; one of size 1 is tied to every index."""
        if first is second or np.array_equal(first, second):
            return
        both = np.stack([x.reshape(-1) for x in np.broadcast_arrays(first, second)], axis=-1)
        for a, b in np.unique(both, axis=0).tolist():
            low, high = sorted((self.find(a), self.find(b)))
            self._parent[high] = low  # FROZEN is the lowest

    def freeze(self, *dims: Labels) -> None:
        """Forbid the removal of anything from these dimensions."""
        for dim in dims:
            self.tie(dim, frozen_dim(len(dim)))

    def is_frozen(self, dim: Labels) -> bool:
        """Return True if nothing of the dimension may be removed."""
        return all(self.find(label) == FROZEN for label in np.unique(dim).tolist())

    def roots(self) -> Labels:
        """Return the representative of each label."""
        return np.array([self.find(i) for i in range(len(self._parent))], dtype=np.int64)


def axes_in(value: Any) -> list[Axes]:
    """Return the axes of the tensors in a value, through tuples and lists."""
    if isinstance(value, Axes):
        return [value]
    if isinstance(value, tuple | list):
        return [axes for each in value for axes in axes_in(each)]
    return []
