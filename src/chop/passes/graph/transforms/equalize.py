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
    apply_change,
    check_calls,
    follow,
    is_layer,
    scaling,
)
from chop.passes.rewrite.annotate import refresh

WHO = "equalize"


@dataclass(frozen=True)
class EqualizeArgs:
    """Settings of `equalize_transform_pass`. `rounds`: passes over all pairs; pairs may overlap."""

    rounds: int = 10

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"equalize.rounds: must be at least 1, got {self.rounds}.")


@graph_pass("equalize_transform_pass", EqualizeArgs, rewrites=True)
def equalize_transform_pass(graph: MaseGraph, args: EqualizeArgs) -> PassResult:
    """Scale the channels between two layers so that both weights have the same range in each.

        equalize_transform_pass(mg)
        quantize_transform_pass(mg, {"linear": {"config": {"name": "integer", ...}}})

    A channel is scaled by the linear layer or convolution that makes it and scaled back by the
    layers that read it. This changes no output if the nodes between let the factor pass: ReLU,
    pooling, views. Such pairs are found by running the graph on its example inputs, with and
    without a change. Weights with one scale for many channels are then rounded better. Run it on
    the float graph with fused batch norms. `info["pairs"]` has the modules of each pair; a graph
    without pairs stays unchanged.
    """
    if any(isinstance(m, QuantizedModule) for m in graph.model.modules()):
        raise ConfigError("equalize: the graph has quantised layers. Equalise before quantising.")
    pairs = list(_pairs(graph))
    for _ in range(args.rounds):
        for writer, trail in pairs:
            written = _ranges(writer, 0)
            read = torch.stack([_ranges(reader, 1) for reader in trail.readers]).amax(0)
            usable = (written > 0) & (read > 0)
            factors = torch.where(usable, (read / written.clamp(min=1e-300)).sqrt(), 1.0)
            apply_change(graph, scaling(factors), Trail(trail.writers), WHO)
            apply_change(graph, scaling(1 / factors), Trail({}, trail.readers), WHO)
    refresh(graph)
    names = [
        {"writer": str(writer.target), "readers": [str(n.target) for n in trail.readers]}
        for writer, trail in pairs
    ]
    return graph, {"pairs": names}


def _pairs(graph: MaseGraph) -> Iterator[tuple[fx.Node, Trail]]:
    """Yield layers whose channels can be scaled, with the path of the change."""
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
            continue  # most layers are in no such pair
        if trail.readers and node not in trail.readers:
            yield node, trail


def _ranges(node: fx.Node, dim: int) -> Tensor:
    """Return the largest magnitude of a weight for each index of a dimension."""
    layer: Any = node_module(node)
    ranges: Tensor = layer.weight.detach().double().abs().movedim(dim, 0).flatten(1).amax(1)
    return ranges
