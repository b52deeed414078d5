"""Batches that enter a model in the middle, and the values of a run on one batch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx


@dataclass(frozen=True)
class CarriedBatch(Mapping[str, Any]):
    """Inputs of a part of a model, such as one decoder layer.

    `inputs`: those behind the layers that changed. `before`: those of the float model; None if they
    are the same. `importances`: the weights of the rows of each layer, by its path in the part.
    `changed`: names of the inputs that depend on quantised layers before. `spill`: folder for the
    values of a run, which otherwise stay in memory.
    """

    inputs: Mapping[str, Any]
    before: Mapping[str, Any] | None = None
    importances: Mapping[str, Tensor] | None = None
    changed: tuple[str, ...] = ()
    spill: Path | None = None

    def __getitem__(self, name: str) -> Any:
        return self.inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)


def reference_of(batch: Any) -> Any:
    """Return the batch with the inputs of the float model; a batch from the start is its own."""
    if not isinstance(batch, CarriedBatch) or batch.before is None:
        return batch
    return CarriedBatch(batch.before, spill=batch.spill)


def changed_inputs(batches: Iterable[Any]) -> set[str]:
    """Return the names of the inputs that depend on quantised layers outside of the graph."""
    return {name for b in batches if isinstance(b, CarriedBatch) for name in b.changed}


@dataclass
class BatchValues:
    """Values of nodes on one batch, in memory."""

    values: dict[fx.Node, Any] = field(default_factory=dict)

    def read(self) -> dict[fx.Node, Any]:
        """Return the values by node."""
        return self.values

    def write(self, values: dict[fx.Node, Any]) -> None:
        """Replace the values."""
        self.values = values

    def close(self) -> None:
        """Drop the values."""
        self.values = {}


class SpilledValues(BatchValues):
    """Values of nodes on one batch, in a file; tensors that are read are mapped to memory."""

    def __init__(self, values: dict[fx.Node, Any], folder: Path) -> None:
        handle, name = tempfile.mkstemp(".pt", "values-", folder)
        os.close(handle)
        self.file, self.nodes = Path(name), {node.name: node for node in values}
        self.write(values)

    def read(self) -> dict[fx.Node, Any]:
        stored = torch.load(self.file, mmap=True, weights_only=True)
        return {self.nodes[name]: value for name, value in stored.items()}

    def write(self, values: dict[fx.Node, Any]) -> None:
        self.nodes = {node.name: node for node in values}
        draft = self.file.with_suffix(".draft")
        torch.save({node.name: value for node, value in values.items()}, draft)
        draft.replace(self.file)  # mapped tensors keep the old file

    def close(self) -> None:
        self.file.unlink(missing_ok=True)
        self.nodes = {}


def values_of(batch: Any, values: dict[fx.Node, Any]) -> BatchValues:
    """Return the store of the values of a run on `batch`."""
    if isinstance(batch, CarriedBatch) and batch.spill is not None:
        return SpilledValues(values, batch.spill)
    return BatchValues(values)
