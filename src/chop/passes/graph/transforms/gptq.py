"""Choose the values of quantised weights by what they do to the layers' outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.log import get_logger
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.observe.calibration_data import calibration_batches
from chop.passes.ptq.observe.input_sums import InputStatistics, InputSums
from chop.passes.ptq.observe.reference_run import PairedRun
from chop.passes.ptq.observe.row_importance import row_importances
from chop.passes.ptq.sites.layer_checkpoints import layer_checkpoints
from chop.passes.ptq.sites.rounded_layers import (
    kept_places,
    layer_grid,
    layers_with_own_weights,
    put_if_better,
    wide_weight,
)
from chop.passes.ptq.solve.gptq_rounding import (
    damped,
    making_up_for,
    output_error,
    rounded_with_feedback,
)
from chop.passes.ptq.solve.rounding_refinement import refined
from chop.passes.ptq.solve.weight_grid import WeightGrid
from chop.passes.rewrite.node_formats import annotate_formats

logger = get_logger(__name__)

ORDERS: dict[str, tuple[bool, ...]] = {
    "importance": (True,),
    "left_to_right": (False,),
    "best": (True, False),
}
"""Whether columns go by importance: each way is tried, and the better is kept."""


@dataclass(frozen=True)
class GptqArgs:
    """`data`: batches to calibrate on, an iterable or a function that gives one; `num_samples`:
    stop after so many rows. `damping`: share of the mean that is added to the diagonal of the
    Hessian. `order`: in which columns are rounded. `target`: the layers' outputs to come close to,
    those of the float model, or those on what the rounded layers before give. `rows`: whether each
    row that a layer is given counts the same, or by what its error does to the model's loss.
    `rounds`: how often scales are fitted to the integers and all weights decided again; 0 is GPTQ
    as published. `keep`: a folder to keep finished layers in: an interrupted run goes on there.
    """

    data: Any = None
    num_samples: int | None = None
    damping: float = 0.01
    order: Literal["best", "importance", "left_to_right"] = "best"
    target: Literal["float", "rounded"] = "float"
    rows: Literal["by_loss", "equal"] = "by_loss"
    rounds: int = 4
    keep: str | Path | None = None

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

    Linear layers and convolutions are taken in the order in which they run, each on the outputs
    of those before it as they are by then. Ranges of groups and blocks are searched too; integers
    keep theirs in a buffer, `weight_scale`. Every weight stays a value of its format, and pruned
    ones stay zero: the others make up for that as for rounding. Rounded
    weights are parameters of the graph's own: the model it was made from keeps its weights. A
    weight that other nodes share is left to plain rounding.
    `info["layers"]` has the signal-to-noise ratio of each layer's output in dB, rounded plainly
    and rounded so.
    """
    layers = layers_with_own_weights(graph, "gptq")
    batches = calibration_batches(args.data, args.num_samples, "gptq.data")
    kept = layer_checkpoints(args.keep, graph, batches, args, "gptq")
    records = []
    with PairedRun(graph, batches, "gptq.data") as run:
        by_loss = args.rows == "by_loss"
        counts = row_importances(graph, dict(layers), batches, "gptq.data") if by_loss else None
        statistics = InputStatistics(run, before=args.target == "float", importances=counts)
        for number, (node, layer) in enumerate(layers, 1):
            logger.info("gptq: layer %d of %d, %s", number, len(layers), node.target)
            named, file = {str(node.target): layer}, f"{number:05}"
            found = kept.find(named, file)
            sums = None if found else statistics.of(node, layer)
            run.remember(layer)
            if found:
                records.append(found.restore(named))
            elif sums:
                records.append(kept.put(named, file, _round_layer(node, layer, sums, args)))
    for node, _ in layers:
        annotate_formats(node)
    return graph, {"layers": records}


def _round_layer(
    node: fx.Node, layer: QuantizedModule, sums: InputSums, args: GptqArgs
) -> dict[str, Any]:
    weight = wide_weight(layer)
    grid = layer_grid(layer, f"gptq: '{node.target}'")
    wanted = weight.double()
    if args.target == "float":
        wanted = making_up_for(weight, sums, args.damping)
    values, ranges = _rounded(wanted, sums.hessian, grid, kept_places(layer), args)
    ranges = ranges.to(weight.dtype)
    values = grid.as_stored(values.to(weight.dtype), ranges)
    return put_if_better(node, layer, grid, (values, ranges), wanted, sums.hessian)


def _rounded(
    wanted: Tensor, hessian: Tensor, grid: WeightGrid, mask: Tensor | None, args: GptqArgs
) -> tuple[Tensor, Tensor]:
    """The values and the ranges of `wanted`: the better of the orders, refined."""
    choices = [
        rounded_with_feedback(
            wanted, hessian, grid, damping=args.damping, by_importance=way, mask=mask
        )
        for way in ORDERS[args.order]
    ]
    best = min(choices, key=lambda choice: output_error(choice[0] - wanted, hessian))
    return refined(*best, wanted, damped(hessian, args.damping), grid, args.rounds, mask)
