"""Choose how far the ranges of quantised weights reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.observe.calibration_data import calibration_batches
from chop.passes.ptq.observe.input_sums import InputStatistics
from chop.passes.ptq.observe.reference_run import PairedRun
from chop.passes.ptq.sites.rounded_layers import (
    layer_grid,
    layers_with_own_weights,
    put_if_better,
    wide_weight,
)
from chop.passes.rewrite.node_formats import annotate_formats


@dataclass(frozen=True)
class ClipArgs:
    """`data`: batches that say how much each input of a layer counts, an iterable or a function
    that gives one; without any, all count alike. `num_samples`: stop after so many rows.
    """

    data: Any = None
    num_samples: int | None = None


@graph_pass("clip_transform_pass", ClipArgs, rewrites=True, preserves=False)
def clip_transform_pass(graph: MaseGraph, args: ClipArgs) -> PassResult:
    """Search the range of each group or block of a quantised weight: the largest weights may be
    clipped where all others are rounded better for it.

        quantize_transform_pass(mg, {"linear": {"config": {"name": "scale_integer", ...}}})
        clip_transform_pass(mg, {"data": batches})

    This is the search that `gptq_transform_pass` begins with, and rounding to the nearest value
    after it: cheap, and possible without data. Integers keep their scales in a buffer,
    `weight_scale`. `info["layers"]` has the signal-to-noise ratio in dB before and after, of each
    layer's output, or without data of its weight.
    """
    layers = layers_with_own_weights(graph, "clip")
    if args.data is None:
        records = [_clip(node, layer, _alike(layer)) for node, layer in layers]
    else:
        records = _clip_by_data(graph, layers, args)
    for node, _ in layers:
        annotate_formats(node)
    return graph, {"layers": records}


def _clip_by_data(
    graph: MaseGraph, layers: list[tuple[fx.Node, QuantizedModule]], args: ClipArgs
) -> list[dict[str, Any]]:
    batches = calibration_batches(args.data, args.num_samples, "clip.data")
    records = []
    with PairedRun(graph, batches, "clip.data") as run:
        statistics = InputStatistics(run, before=False)
        for node, layer in layers:
            hessian = statistics.of(node, layer).hessian
            records.append(_clip(node, layer, hessian))
    return records


def _alike(layer: QuantizedModule) -> Tensor:
    weight = wide_weight(layer)
    return torch.eye(weight.shape[1], dtype=torch.double, device=weight.device)


def _clip(node: fx.Node, layer: QuantizedModule, hessian: Tensor) -> dict[str, Any]:
    weight = wide_weight(layer)
    grid = layer_grid(layer, f"clip: '{node.target}'")
    importance = hessian.diagonal().to(weight.dtype)
    ranges = grid.chosen_range(weight, importance.clamp(min=importance.mean() * 1e-6))
    spread = ranges[:, grid.groups]
    values = grid.as_stored(grid.round(weight, spread), ranges)
    return put_if_better(node, layer, grid, (values, ranges), weight, hessian)
