"""Space of compressions: number formats and pruning."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from chop.arguments import MAPPING, check
from chop.config import parse
from chop.errors import ConfigError
from chop.passes.prune.pruning_config import PruneWeight
from chop.search.precision import PrecisionSpace
from chop.search.precision import read_space as read_precision
from chop.search.space import ParameterValue, Product, Real, Space, read_dimension

S = TypeVar("S", bound=Space)
PassArgs = dict[str, dict[str, Any]]
PRUNE = "prune."
"""Prefix of the dimensions of pruning."""


class PruneSpace(Space):
    """Settings of `prune_transform_pass` for weights, such as sparsity and method.

    Lists and ranges are searched, other values are fixed. A sparsity of 0 prunes nothing.
    """

    def __init__(self, fields: Mapping[str, Any], *, where: str = "prune") -> None:
        check(where, MAPPING, fields)
        searched = {k: v for k, v in fields.items() if isinstance(v, list | tuple | Mapping)}
        self.fixed = {k: v for k, v in fields.items() if k not in searched}
        self.names = {f"{PRUNE}{k}": read_dimension(v, f"{where}.{k}") for k, v in searched.items()}
        super().__init__(self.names)
        points = [
            (d.low, d.high) if isinstance(d, Real) else (d.points or ())
            for d in self.names.values()
        ]
        for each in itertools.product(*points):  # the pass must accept every combination
            chosen = {k.removeprefix(PRUNE): v for k, v in zip(self.names, each, strict=True)}
            parse(PruneWeight, {**self.fixed, **chosen}, where)

    def prune_config(
        self, params: Mapping[str, ParameterValue], seed: int = 0
    ) -> dict[str, Any] | None:
        """Return the arguments of prune_transform_pass for a point; None if nothing is pruned."""
        chosen = {k.removeprefix(PRUNE): params[k] for k in self.names if k in params}
        weight = {**self.fixed, **chosen}
        if weight.get("sparsity") == 0:
            return None
        return {"weight": weight, "seed": seed}


def factor(space: Space, kind: type[S]) -> S | None:
    """Return the first factor of `space` that is a `kind`, or None."""
    parts = space.factors if isinstance(space, Product) else (space,)
    return next((part for part in parts if isinstance(part, kind)), None)


def pass_args(space: Space, params: Mapping[str, ParameterValue], seed: int = 0) -> PassArgs:
    """Return the arguments of a CompressionPipeline for a point, without passes that do nothing."""
    formats, prune = factor(space, PrecisionSpace), factor(space, PruneSpace)
    quantize = None if formats is None else formats.quantize_config(params)
    weights = None if prune is None else prune.prune_config(params, seed)
    named = {"quantize_transform_pass": quantize, "prune_transform_pass": weights}
    return {name: args for name, args in named.items() if args is not None}


class CompressionSpace(Product):
    """Product of number formats and pruning; one of them may be missing."""

    def __init__(
        self, quantize: PrecisionSpace | None = None, prune: PruneSpace | None = None
    ) -> None:
        if quantize is None and prune is None:
            raise ConfigError("compression: nothing to search: give quantize, prune or both.")
        super().__init__(*(space for space in (quantize, prune) if space is not None))

    def pass_args(self, params: Mapping[str, ParameterValue], seed: int = 0) -> PassArgs:
        """Return the arguments of a CompressionPipeline for a point."""
        return pass_args(self, params, seed)


@dataclass(frozen=True)
class CompressionTable:
    """TOML form: a table of formats (see `PrecisionSpace`) and one of pruning."""

    quantize: dict[str, Any] | None = None
    prune: dict[str, Any] | None = None


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> CompressionSpace:
    """Read a table `[space.compression]`, with tables `quantize` and `prune`."""
    table = parse(CompressionTable, mapping, where)
    quantize = prune = None
    if table.quantize is not None:
        quantize = read_precision(table.quantize, f"{where}.quantize", subject)
    if table.prune is not None:
        prune = PruneSpace(table.prune, where=f"{where}.prune")
    return CompressionSpace(quantize, prune)
