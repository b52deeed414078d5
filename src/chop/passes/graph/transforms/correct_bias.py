"""Correct the mean error of each channel of a quantised layer in its bias."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.log import get_logger
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Bypass
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.observe.input_sums import InputStatistics, InputSums
from chop.passes.ptq.observe.layerwise_run import PairedRun, calibration_batches
from chop.passes.ptq.sites.channel_flow import add_to_bias
from chop.passes.ptq.sites.rounded_layers import plain_weight, quantized_layer, wide_weight
from chop.passes.rewrite.node_formats import annotate_formats

logger = get_logger(__name__)


@dataclass(frozen=True)
class CorrectBiasArgs:
    """Settings of `correct_bias_transform_pass`.

    `data`: calibration batches, an iterable or a function that returns one. `num_samples`: rows to
    use.
    """

    data: Any = None
    num_samples: int | None = None


@graph_pass("correct_bias_transform_pass", CorrectBiasArgs, rewrites=True, preserves=False)
def correct_bias_transform_pass(graph: MaseGraph, args: CorrectBiasArgs) -> PassResult:
    """Change the biases of quantised layers so that their outputs have the float model's means.

        quantize_transform_pass(mg, {"linear": {"config": {"name": "mxint", "weight_width": 4}}})
        correct_bias_transform_pass(mg, {"data": batches})

    Rounding moves the mean of a channel, and the next layer receives that shift in every sample.
    Linear layers and convolutions are corrected in the order of the graph: the difference of the
    means over the data is added to the bias. A layer without a bias gets one in floating point. The
    float mean is that of the stored weights, so run this pass before one that rounds them.
    `info["layers"]` has the largest correction of each layer, relative to the root mean square of
    its output's means.
    """
    layers = list(_layers(graph))
    if not layers:
        raise ConfigError(
            "correct_bias: the graph has no quantised weight. Run quantize_transform_pass."
        )
    batches = calibration_batches(args.data, args.num_samples, "correct_bias.data")
    records = []
    with PairedRun(graph, batches, "correct_bias.data") as run:
        statistics = InputStatistics(run, before=True)
        for node, layer in layers:
            sums = statistics.of(node, layer)
            run.advance_before(node.next)
            records.append(_correct(node, layer, sums))
    for node, _ in layers:
        annotate_formats(node)
    return graph, {"layers": records}


def _layers(graph: MaseGraph) -> Iterator[tuple[fx.Node, QuantizedModule]]:
    """Yield quantised layers; skip those with several calls, which have several means."""
    nodes = [node for node in graph.fx_graph.nodes if quantized_layer(node) is not None]
    calls = Counter(str(node.target) for node in nodes)
    for node in nodes:
        if calls[str(node.target)] == 1:
            yield node, cast(QuantizedModule, quantized_layer(node))
        else:
            logger.warning("correct_bias: '%s' is called several times, and left.", node.target)


def _correct(node: fx.Node, layer: QuantizedModule, sums: InputSums) -> dict[str, Any]:
    target = wide_weight(layer).double() @ (sums.total_before / sums.rows)
    correction = target - plain_weight(layer).double() @ (sums.total / sums.rows)
    if cast(Tensor | None, layer.bias) is None:
        layer.set_formats(
            {**layer.config, "bias_width": "NA"}, {**layer.quantizers, "bias": Bypass()}
        )
    add_to_bias(layer, correction)
    size = float(target.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny))
    largest = float(correction.abs().amax()) / size
    return {"node": node.name, "module": str(node.target), "largest": largest}
