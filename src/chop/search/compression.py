"""The space of compressions: number formats, and what to prune."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from chop.arguments import MAPPING, check
from chop.config import parse
from chop.errors import ConfigError
from chop.passes.prune.pruning_config import PruneWeight
from chop.search.precision import PrecisionSpace
from chop.search.precision import read_space as read_precision
from chop.search.space import Dimension, Product, Real, Space, Value, read_dimension

S = TypeVar("S", bound=Space)
PassArgs = dict[str, dict[str, Any]]
PRUNE = "prune."
"""How the names of the dimensions of pruning start."""


class PruneSpace(Space):
    """Settings of `prune_transform_pass` for weights: sparsity, method, scope, granularity …

    Lists and ranges are searched, the rest is fixed. A sparsity of 0 prunes nothing.
    """

    def __init__(self, fields: Mapping[str, Any], *, where: str = "prune") -> None:
        check(where, MAPPING, fields)
        searched = {k: v for k, v in fields.items() if isinstance(v, list | tuple | Mapping)}
        self.fixed = {k: v for k, v in fields.items() if k not in searched}
        self.names = {f"{PRUNE}{k}": read_dimension(v, f"{where}.{k}") for k, v in searched.items()}
        super().__init__(self.names)
        _check(self.names, self.fixed, where)

    def prune_config(self, params: Mapping[str, Value], seed: int = 0) -> dict[str, Any] | None:
        """The arguments of prune_transform_pass for a point; None where nothing is pruned."""
        chosen = {k.removeprefix(PRUNE): params[k] for k in self.names if k in params}
        weight = {**self.fixed, **chosen}
        if weight.get("sparsity") == 0:
            return None
        return {"weight": weight, "seed": seed}


def _check(names: Mapping[str, Dimension], fixed: Mapping[str, Any], where: str) -> None:
    """Every combination must be something the pass takes."""
    points = [(d.low, d.high) if isinstance(d, Real) else (d.points or ()) for d in names.values()]
    for each in itertools.product(*points):
        chosen = {k.removeprefix(PRUNE): v for k, v in zip(names, each, strict=True)}
        parse(PruneWeight, {**fixed, **chosen}, where)


def factor(space: Space, kind: type[S]) -> S | None:
    """The part of `space` that is a `kind`, None where there is none."""
    parts = space.factors if isinstance(space, Product) else (space,)
    return next((part for part in parts if isinstance(part, kind)), None)


def pass_args(space: Space, params: Mapping[str, Value], seed: int = 0) -> PassArgs:
    """The arguments of a CompressionPipeline for a point: of passes with something to do."""
    formats, prune = factor(space, PrecisionSpace), factor(space, PruneSpace)
    quantize = None if formats is None else formats.quantize_config(params)
    weights = None if prune is None else prune.prune_config(params, seed)
    named = {"quantize_transform_pass": quantize, "prune_transform_pass": weights}
    return {name: args for name, args in named.items() if args is not None}


class CompressionSpace(Product):
    """Number formats and pruning together; either may be left out.

    `pass_args(params)` are the arguments of a CompressionPipeline.
    """

    def __init__(
        self, quantize: PrecisionSpace | None = None, prune: PruneSpace | None = None
    ) -> None:
        if quantize is None and prune is None:
            raise ConfigError("compression: nothing to search: give quantize, prune or both.")
        super().__init__(*(space for space in (quantize, prune) if space is not None))

    def pass_args(self, params: Mapping[str, Value], seed: int = 0) -> PassArgs:
        """Pass name -> arguments, for the passes that have something to do."""
        return pass_args(self, params, seed)


@dataclass(frozen=True)
class CompressionTable:
    """The TOML form: a table of formats (see `PrecisionSpace`) and one of pruning."""

    quantize: dict[str, Any] | None = None
    prune: dict[str, Any] | None = field(default=None)


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> CompressionSpace:
    """The space of a table `[space.compression]`, with tables `quantize` and `prune`."""
    table = parse(CompressionTable, mapping, where)
    quantize = prune = None
    if table.quantize is not None:
        quantize = read_precision(table.quantize, f"{where}.quantize", subject)
    if table.prune is not None:
        prune = PruneSpace(table.prune, where=f"{where}.prune")
    return CompressionSpace(quantize, prune)
