"""Round quantised weights, or search their ranges, so that layer outputs change least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.log import get_logger, log_step
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.observe.curvature import row_importances
from chop.passes.ptq.observe.expert_tokens import routed_rows, warn_rare_experts
from chop.passes.ptq.observe.held_back import note_fallbacks
from chop.passes.ptq.observe.input_sums import InputStatistics
from chop.passes.ptq.observe.layerwise_run import PairedRun, calibration_batches
from chop.passes.ptq.observe.row_sums import InputSums
from chop.passes.ptq.sites.layer_checkpoints import layer_checkpoints
from chop.passes.ptq.sites.rounded_layers import (
    RoundedWeight,
    kept_places,
    layer_grid,
    layers_with_own_weights,
    put_if_better,
    wide_weight,
)
from chop.passes.ptq.solve.column_feedback import (
    compensating_weight,
    damped,
    output_error,
    rounded_with_feedback,
)
from chop.passes.ptq.solve.rounding_refinement import refined
from chop.passes.ptq.solve.sliced_rounding import SlicedRounding, SlicedSettings
from chop.passes.ptq.solve.weight_grid import WeightGrid
from chop.passes.rewrite.node_formats import annotate_formats

logger = get_logger(__name__)

ORDERS: dict[str, tuple[bool, ...]] = {
    "importance": (True,),
    "left_to_right": (False,),
    "best": (True, False),
}
"""Values of `by_importance` for each order; all are tried and the best result is used."""


@dataclass(frozen=True)
class GptqArgs:
    """Settings of `gptq_transform_pass`.

    `data`: calibration batches, an iterable or a function that returns one. `num_samples`: rows to
    use. `damping`: share of the mean that is added to the diagonal of the Hessian. `order`: order
    of the columns. `target`: the outputs to approximate, those of the float model or those on the
    results of the rounded layers before. `rows`: weigh all rows equally, or by the effect of their
    error on the loss. `rounds`: refinements of scales and weights; 0 is GPTQ as published.
    `experts`: tokens that calibrate an expert of a mixture: those that the router sends to it, or
    all tokens, of which the others have a small weight. `keep`: a folder for checkpoints of
    finished layers, from which an interrupted run resumes. `spill`: a folder for the sums over the
    inputs of wide layers on the CPU, which otherwise are in memory: 8 bytes for each pair of
    columns, several times.
    """

    data: Any = None
    num_samples: int | None = None
    damping: float = 0.01
    order: Literal["best", "importance", "left_to_right"] = "best"
    target: Literal["float", "rounded"] = "float"
    rows: Literal["by_loss", "equal"] = "by_loss"
    rounds: int = 4
    experts: Literal["all", "routed"] = "all"
    keep: str | Path | None = None
    spill: str | Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.damping < 1:
            raise ConfigError(f"gptq.damping: must lie between 0 and 1, got {self.damping}.")
        if self.rounds < 0:
            raise ConfigError(f"gptq.rounds: must be 0 or more, got {self.rounds}.")


@graph_pass("gptq_transform_pass", GptqArgs, rewrites=True, preserves=False)
def gptq_transform_pass(graph: MaseGraph, args: GptqArgs) -> PassResult:
    """Round the weights of quantised layers so that the layers' outputs change least.

        quantize_transform_pass(mg, {"linear": {"config": {
            "name": "scale_integer", "weight_width": 4, "weight_granularity": "group",
            "weight_group_size": 128, "data_in_width": "NA", "bias_width": "NA"}}})
        gptq_transform_pass(mg, {"data": batches})

    Linear layers and convolutions are rounded in the order of the graph, each on the outputs of the
    rounded layers before it. Ranges of groups and blocks are searched too; integers store theirs in
    the buffer `weight_scale`. Every weight stays a value of its format. Pruned weights stay zero,
    and the others compensate for them too. Rounded weights are parameters of the graph: the model
    it was captured from keeps its weights. A weight that other nodes share is rounded plainly.
    One row in eight is held back: a layer that is worse on these rows keeps rounding to nearest,
    and any other layer is rounded again by all rows. So does a layer whose rounded weights would
    make later values NaN, as the logarithm of a number below zero is.
    `info["layers"]` has the signal-to-noise ratio of each layer's output in dB, after plain
    rounding and after this pass, and the `kept` rounding. For the layers of experts
    (`chop.passes.rewrite.split_experts`) it has the `tokens` that the router sends to them; few
    tokens are logged.
    """
    layers = layers_with_own_weights(graph, "gptq")
    batches = calibration_batches(args.data, args.num_samples, "gptq.data")
    checkpoints = layer_checkpoints(args.keep, graph, batches, args, "gptq")
    records = []
    with PairedRun(graph, batches, "gptq.data") as run:
        by_loss = args.rows == "by_loss"
        rows = row_importances(graph, dict(layers), batches, "gptq.data") if by_loss else None
        statistics = InputStatistics(
            run,
            before=args.target == "float",
            importances=rows,
            holds_back=True,
            all_rows=args.experts == "all",
            spill=None if args.spill is None else Path(args.spill),
        )
        for number, (node, layer) in enumerate(layers, 1):
            log_step(logger, "gptq: layer", number, len(layers), str(node.target))
            named, file = {str(node.target): layer}, f"{number:05}"
            stored = checkpoints.find(named, file)
            sums = None if stored else statistics.of(node, layer)
            if args.target == "float":
                run.remember(layer)
            if stored:
                records.append(stored.restore(named))
            elif sums:
                has_nan = partial(run.now.has_nan, _next_stop(layers, number))
                record = _round_layer(node, layer, sums, args, has_nan)
                record |= routed_rows(statistics, node)
                records.append(checkpoints.put(named, file, record))
    for node, _ in layers:
        annotate_formats(node)
    note_fallbacks(logger, records, "gptq")
    warn_rare_experts(logger, records, "gptq")
    return graph, {"layers": records}


def _next_stop(layers: Sequence[tuple[fx.Node, QuantizedModule]], number: int) -> fx.Node:
    """Return the node of layer `number`, or the output of the graph behind the last layer."""
    if number < len(layers):
        return layers[number][0]
    nodes: list[fx.Node] = list(layers[0][0].graph.nodes)
    return nodes[-1]


def _round_layer(
    node: fx.Node,
    layer: QuantizedModule,
    sums: InputSums,
    args: GptqArgs,
    has_nan: Callable[[], bool],
) -> dict[str, Any]:
    grid = layer_grid(layer, f"gptq: '{node.target}'")
    fit = _FeedbackRounding(wide_weight(layer), kept_places(layer), grid, args)
    return put_if_better(node, layer, grid, fit, sums, has_nan)


class _FeedbackRounding:
    """Rounding of one weight to sums over its inputs; `mask` is False where it is pruned."""

    def __init__(
        self, weight: Tensor, mask: Tensor | None, grid: WeightGrid, args: GptqArgs
    ) -> None:
        self.weight, self.mask, self.grid, self.args = weight, mask, grid, args
        self.orders = ORDERS[args.order]

    def __call__(self, sums: InputSums) -> RoundedWeight:
        """Return the rounded weight; later calls try the best order of the first call only."""
        weight, grid, args = self.weight, self.grid, self.args
        is_float = args.target == "float"
        if not isinstance(sums.hessian, Tensor):
            assert args.spill is not None, "sums in files have a folder"
            settings = SlicedSettings(Path(args.spill), args.damping, args.rounds, is_float)
            sliced = SlicedRounding(weight, self.mask, grid, settings)
            values, ranges, target, best = sliced(sums, self.orders)
            self.orders = (best,)
            return RoundedWeight(values, ranges, target)
        target = compensating_weight(weight, sums, args.damping) if is_float else weight.double()
        choices = {
            way: rounded_with_feedback(
                target, sums.hessian, grid, damping=args.damping, by_importance=way, mask=self.mask
            )
            for way in self.orders
        }
        best = min(choices, key=lambda way: output_error(choices[way][0] - target, sums.hessian))
        self.orders = (best,)
        lifted = damped(sums.hessian, args.damping)
        values, ranges = refined(*choices[best], target, lifted, grid, args.rounds, self.mask)
        ranges = ranges.to(weight.dtype)
        return RoundedWeight(grid.as_stored(values.to(weight.dtype), ranges), ranges, target)


@dataclass(frozen=True)
class ClipArgs:
    """Settings of `clip_transform_pass`.

    `data`: calibration batches that weigh the inputs of a layer, an iterable or a function that
    returns one; without it all inputs count the same. `num_samples`: rows to use.
    """

    data: Any = None
    num_samples: int | None = None


@graph_pass("clip_transform_pass", ClipArgs, rewrites=True, preserves=False)
def clip_transform_pass(graph: MaseGraph, args: ClipArgs) -> PassResult:
    """Search the range of each group or block of a quantised weight.

    The largest weights may be clipped if all others are rounded better.

        quantize_transform_pass(mg, {"linear": {"config": {"name": "scale_integer", ...}}})
        clip_transform_pass(mg, {"data": batches})

    This is the first step of `gptq_transform_pass`, with rounding to the nearest value after it. It
    is cheap and needs no data. Integers store their scales in the buffer `weight_scale`.
    `info["layers"]` has the signal-to-noise ratio in dB before and after, of each layer's output,
    or of its weight without data.
    """
    layers = layers_with_own_weights(graph, "clip")
    if args.data is None:
        records = [_clip(n, layer, _equal_inputs(layer)) for n, layer in layers]
    else:
        batches = calibration_batches(args.data, args.num_samples, "clip.data")
        with PairedRun(graph, batches, "clip.data") as run:
            statistics = InputStatistics(run, before=False, holds_back=True)
            records = [_clip(n, layer, statistics.of(n, layer)) for n, layer in layers]
    for node, _ in layers:
        annotate_formats(node)
    note_fallbacks(logger, records, "clip")
    return graph, {"layers": records}


def _equal_inputs(layer: QuantizedModule) -> InputSums:
    """Return the sums over inputs that are independent and equally large."""
    weight = wide_weight(layer)
    none = weight.new_zeros(1).double()
    same = torch.eye(weight.shape[1], dtype=torch.double, device=weight.device)
    return InputSums(same, none, none, none, len(same))


def _clip(node: fx.Node, layer: QuantizedModule, sums: InputSums) -> dict[str, Any]:
    weight, grid = wide_weight(layer), layer_grid(layer, f"clip: '{node.target}'")

    def fit(sums: InputSums) -> RoundedWeight:
        importance = sums.hessian.diagonal().to(weight.device, weight.dtype)
        ranges = grid.chosen_range(weight, importance.clamp(min=importance.mean() * 1e-6))
        values = grid.as_stored(grid.round(weight, ranges[:, grid.groups]), ranges)
        return RoundedWeight(values, ranges, weight)

    return put_if_better(node, layer, grid, fit, sums)
