"""Budget of bits per weight over a whole model, of which some layers stay float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis.sensitivity import (
    WEIGHT,
    layers_with_weights,
    stored_bits,
    weight_formats,
)

Table = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class WeightBudget:
    """Sizes of the weights of a model.

    `total`: elements of all weights, which are the parameters with two or more dimensions.
    `covered`: elements whose width can be chosen. `rest_bits`: bits of all others. `least_bits`:
    bits of the covered ones in their narrowest formats. `ties`: node of a layer -> node of the
    first layer with the same weight; both have one format.
    """

    total: int
    covered: int
    rest_bits: float
    least_bits: float
    ties: Mapping[str, str]

    @staticmethod
    def of(graph: MaseGraph, formats: Mapping[str, Mapping[str, Any]]) -> WeightBudget:
        """Return the budget of `graph` for layers in one of `formats`."""
        first: dict[int, str] = {}
        ties: dict[str, str] = {}
        least = 0.0
        for node, layer in layers_with_weights(graph).items():
            weight: Any = layer.weight
            ties[node.name] = first.setdefault(id(weight), node.name)
            if ties[node.name] == node.name:
                forms = weight_formats(layer, formats).values()
                least += weight.numel() * min(stored_bits(f[WEIGHT], weight) for f in forms)
        weights = [p for p in graph.model.parameters() if p.dim() > 1]
        rest = [p for p in weights if id(p) not in first]
        total = sum(p.numel() for p in weights)
        rest_bits = sum(8.0 * p.numel() * p.element_size() for p in rest)
        return WeightBudget(total, total - sum(p.numel() for p in rest), rest_bits, least, ties)

    def check(self, bits: float) -> None:
        """Raise unless `bits` per weight can be reached."""
        least = (self.least_bits + self.rest_bits) / self.total
        if least > bits * (1 + 1e-12):
            floats = self.total - self.covered
            rest = f", with {floats:,} of {self.total:,} weights as floats" if floats else ""
            raise ConfigError(
                f"quantize.bits: {bits:g} bits, and the cheapest formats take {least:.4g}{rest}. "
                "Allow more, or give --widths (2,3,4,5,6,8), of which few kernels and exports take "
                "others than 4 and 8."
            )

    def chosen_bits(self, bits: float) -> float:
        """Return the bits per covered weight for `bits` per weight of the model."""
        return (bits * self.total - self.rest_bits) / self.covered

    def overall_bits(self, chosen: float) -> float:
        """Return the bits per weight of the model for `chosen` bits per covered weight."""
        return (chosen * self.covered + self.rest_bits) / self.total

    def merged(self, table: Table) -> list[dict[str, Any]]:
        """Return a table of sensitivities with one row for layers that share a weight."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for row in table:
            key = (self.ties[row["node"]], row["format"])
            if key not in rows:
                rows[key] = dict(row)
                continue
            moves = np.add(rows[key]["moves"], row["moves"])
            rows[key] |= {"moves": moves.tolist(), "loss": float(np.square(moves).sum())}
        return list(rows.values())

    def spread(self, assignment: Mapping[str, str]) -> dict[str, str]:
        """Return the format of every layer; layers that share a weight share the format."""
        return {node: assignment[first] for node, first in self.ties.items()}
