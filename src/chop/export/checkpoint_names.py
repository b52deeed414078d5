"""Names that the parameters of a model have in its files.

transformers renames some parameters when it loads a model, and stacks the matrices of experts in
one parameter. Files, and the servers that read them, have a matrix for each expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

try:
    from transformers import core_model_loading as loading
except ImportError:  # transformers before version 5 stacks nothing
    loading = None  # type: ignore[assignment]

STACKED = 3
"""Dimensions of a parameter with a matrix (outputs, inputs) for each expert."""


@dataclass(frozen=True)
class StoredPart:
    """Tensor of a file that is a parameter, or the rows `first` to `last` of one `expert`."""

    name: str
    expert: int | None = None
    first: int = 0
    last: int | None = None

    @property
    def module(self) -> str:
        """Path of the module that owns the tensor in files."""
        return self.name.rpartition(".")[0]

    def of(self, matrix: Tensor) -> Tensor:
        """Return the rows of an expert's matrix, or of its scales, that this part has."""
        return matrix[self.first : self.last]


def stored_parts(model: Any) -> dict[str, tuple[StoredPart, ...]]:
    """Return the parts of every parameter of a model of transformers in its files.

    A parameter that transformers changes in another way has its own name.
    """
    parameters = dict(model.named_parameters())
    stacked = {name for name, p in parameters.items() if p.dim() == STACKED}
    parts: dict[str, tuple[StoredPart, ...]] = {n: (StoredPart(n),) for n in parameters}
    if loading is None or not stacked:
        return parts
    parts |= _renamed(model, {n: p for n, p in parameters.items() if n not in stacked})
    for name in stacked:
        experts, rows, _ = parameters[name].shape
        # each row holds its own number, so that the result says where it went
        numbers = torch.arange(experts * rows).reshape(experts, rows, 1)
        own = _parts_of(_reverted(model, {name: numbers}), experts, rows)
        parts[name] = own or parts[name]
    return parts


def _renamed(model: Any, parameters: Mapping[str, Tensor]) -> dict[str, tuple[StoredPart, ...]]:
    """Return the names of parameters that are stored whole."""
    marks = {name: torch.empty(p.shape, device="meta") for name, p in parameters.items()}
    reverted = _reverted(model, marks)
    by_tensor = {id(tensor): name for name, tensor in reverted.items()}
    return {
        name: (StoredPart(by_tensor[id(mark)]),)
        for name, mark in marks.items()
        if id(mark) in by_tensor
    }


def _reverted(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        return dict(loading.revert_weight_conversion(model, dict(tensors)))
    except (RuntimeError, ValueError, KeyError, AttributeError, TypeError):
        return {}  # a change that needs the values: the parameters have their own names


def _parts_of(
    reverted: Mapping[str, Tensor], experts: int, rows: int
) -> tuple[StoredPart, ...] | None:
    """Return the parts of a stacked parameter; None if they are not rows of one expert each."""
    parts = []
    for name, tensor in reverted.items():
        numbers = tensor.flatten().tolist()
        first, last = numbers[0], numbers[-1] + 1
        is_run = numbers == list(range(first, last))
        if not is_run or first // rows != (last - 1) // rows or not name.endswith(".weight"):
            return None
        parts.append(StoredPart(name, first // rows, first % rows, (last - 1) % rows + 1))
    covered = sum((part.last or 0) - part.first for part in parts)
    return tuple(parts) if covered == experts * rows else None


def expert_parts(parts: Iterable[StoredPart], expert: int) -> list[StoredPart]:
    """Return the parts of one expert, in the order of their rows."""
    return sorted((p for p in parts if p.expert == expert), key=lambda part: part.first)


def with_own_names(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of files with the names of the model's modules; experts keep theirs."""
    return _moved(tensors, {stored: own for own, stored in _places(model).items()})


def with_stored_names(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of modules with the names that files have; experts keep theirs."""
    return _moved(tensors, _places(model))


def _places(model: Any) -> dict[str, str]:
    """Return the path in files of the modules whose parameters are stored whole."""
    return {
        name.rpartition(".")[0]: part.module
        for name, parts in stored_parts(model).items()
        for part in parts
        if part.expert is None and name.rpartition(".")[2] == part.name.rpartition(".")[2]
    }


def _moved(tensors: Mapping[str, Tensor], places: Mapping[str, str]) -> dict[str, Tensor]:
    """Return tensors with other paths of their modules."""
    moved = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        moved[f"{places[module]}.{leaf}" if module in places else name] = tensor
    return moved
