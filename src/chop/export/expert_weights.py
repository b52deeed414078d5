"""Matrices of experts, under the names that they have in files.

A graph has the experts of a mixture in one parameter of three dimensions, in one layer, or in a
layer for each expert. Files have one or more matrices for each expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from chop.export.checkpoint_names import STACKED, StoredPart, stored_parts
from chop.export.exported_weights import Weight


def stacked_parts(model: Any) -> dict[str, tuple[StoredPart, ...]]:
    """Return the parts of the parameters that files have as a matrix for each expert."""
    return {
        name: parts
        for name, parts in stored_parts(model).items()
        if all(part.expert is not None for part in parts)
    }


def expert_matrices(
    stacked: Mapping[str, tuple[StoredPart, ...]], weights: Mapping[str, Weight]
) -> dict[str, Weight]:
    """Return the matrices of all experts, by their names in files.

    Stacked weights without a format stay one tensor: transformers reads them under their own name.
    """
    matrices: dict[str, Weight] = {}
    for name, parts in stacked.items():
        rows = max(part.last or 0 for part in parts)
        own = {part: _matrix(name, part, rows, weights) for part in parts}
        present = {part: weight for part, weight in own.items() if weight is not None}
        if any(weight.format is not None for weight in present.values()):
            matrices |= {part.name: weight for part, weight in present.items()}
        elif len(present) == len(parts):
            matrices[name] = Weight(_stacked(present, rows))
    return matrices


def _stacked(matrices: Mapping[StoredPart, Weight], rows: int) -> Tensor:
    """Return the matrices of all experts as one tensor of three dimensions."""
    experts = 1 + max(part.expert or 0 for part in matrices)
    first = next(iter(matrices.values())).values
    stacked = first.new_empty(experts, rows, first.shape[-1])
    for part, weight in matrices.items():
        part.of(stacked[part.expert]).copy_(weight.values)
    return stacked


def _matrix(name: str, part: StoredPart, rows: int, weights: Mapping[str, Weight]) -> Weight | None:
    """Return the rows of one expert, of `rows` each; None if the graph does not have them."""
    assert part.expert is not None, f"{part.name} belongs to an expert"
    alone = weights.get(f"{name}.{part.expert}.weight")
    if alone is not None:
        return alone.rows(part.first, part.last)
    weight = weights.get(f"{name}.weight")
    if weight is None:
        return None
    if weight.values.dim() == STACKED:
        weight = Weight(weight.values[part.expert], weight.format, is_linear=True)
        return weight.rows(part.first, part.last)
    start = part.expert * rows  # one layer has the matrices of all experts below each other
    return weight.rows(start + part.first, start + (rows if part.last is None else part.last))
