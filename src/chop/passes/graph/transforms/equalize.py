"""Equalise the ranges of channels between layers that follow each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.sites.channel_flow import (
    CONVOLUTIONS,
    READERS,
    ExampleRun,
    RefusedError,
    Trail,
    follow,
    is_layer,
    scaling,
)
from chop.passes.ptq.sites.weight_updates import apply_change, check_calls
from chop.passes.rewrite.annotate import refresh

WHO = "equalize"


@dataclass(frozen=True)
class EqualizeArgs:
    """`rounds`: how often all pairs are gone through; a layer may be in two."""

    rounds: int = 10

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"equalize.rounds: must be at least 1, got {self.rounds}.")


@graph_pass("equalize_transform_pass", EqualizeArgs, rewrites=True)
def equalize_transform_pass(graph: MaseGraph, args: EqualizeArgs) -> PassResult:
    """Scale the channels between two layers so that both weights have the same range in each.

        equalize_transform_pass(mg)
        quantize_transform_pass(mg, {"linear": {"config": {"name": "integer", ...}}})

    A channel that is scaled where a linear layer or convolution makes it, and scaled back where the
    next ones read it, changes no output when what lies between lets it pass: ReLU, pooling, views.
    Such pairs are found by running the graph on its example inputs, as it is and scaled. Weights
    with one scale for many channels are rounded better then. Run it on the float graph, batch norms
    fused. `info["pairs"]` has the modules of each pair; a graph without any stays as it is.
    """
    if any(isinstance(m, QuantizedModule) for m in graph.model.modules()):
        raise ConfigError("equalize: the graph has quantised layers. Equalise before quantising.")
    pairs = list(_pairs(graph))
    for _ in range(args.rounds):
        for writer, trail in pairs:
            _equalize(graph, writer, trail)
    refresh(graph)
    named = [
        {"writer": str(writer.target), "readers": [str(n.target) for n in trail.readers]}
        for writer, trail in pairs
    ]
    return graph, {"pairs": named}


def _pairs(graph: MaseGraph) -> Iterator[tuple[fx.Node, Trail]]:
    """Layers whose channels can be scaled, with where that goes."""
    run = ExampleRun(graph, WHO)
    draw = torch.Generator().manual_seed(0)
    for node in run.nodes:
        if not is_layer(node, READERS):
            continue
        dim = 1 if is_layer(node, CONVOLUTIONS) else run.values[node].dim() - 1
        size = run.values[node].shape[dim]
        factors = 0.5 + torch.rand(size, generator=draw, dtype=torch.double)
        try:
            trail = follow(run, scaling(factors), {node: dim}, extend=False)
            check_calls(graph, trail)
        except RefusedError:
            continue  # most layers: what follows is no such pair
        if trail.readers and node not in trail.readers:
            yield node, trail


def _equalize(graph: MaseGraph, writer: fx.Node, trail: Trail) -> None:
    made = _ranges(writer, 0)
    read = torch.stack([_ranges(reader, 1) for reader in trail.readers]).amax(0)
    usable = (made > 0) & (read > 0)
    factors = torch.where(usable, (read / made.clamp(min=1e-300)).sqrt(), 1.0)
    apply_change(graph, scaling(factors), Trail(trail.writers), WHO)
    apply_change(graph, scaling(1 / factors), Trail({}, trail.readers), WHO)


def _ranges(node: fx.Node, dim: int) -> Tensor:
    """The largest magnitude of a weight for each index of a dimension."""
    layer: Any = node_module(node)
    found: Tensor = layer.weight.detach().double().abs().movedim(dim, 0).flatten(1).amax(1)
    return found
