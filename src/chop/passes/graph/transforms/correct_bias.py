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
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.observe.held_back import (
    KEPT,
    METHOD,
    NEAREST,
    checked_fit,
    note_fallbacks,
)
from chop.passes.ptq.observe.input_sums import InputStatistics
from chop.passes.ptq.observe.layerwise_run import PairedRun, calibration_batches
from chop.passes.ptq.observe.row_sums import InputSums
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
    float mean is that of the stored weights, so run this pass before one that rounds them. One row
    in eight is held back: a layer whose correction is worse on these rows keeps its bias.
    `info["layers"]` has the largest correction of each layer, relative to the root mean square of
    its output's means, and what was `kept`.
    """
    layers = list(_layers(graph))
    if not layers:
        raise ConfigError(
            "correct_bias: the graph has no quantised weight. Run quantize_transform_pass."
        )
    batches = calibration_batches(args.data, args.num_samples, "correct_bias.data")
    records = []
    with PairedRun(graph, batches, "correct_bias.data") as run:
        statistics = InputStatistics(run, before=True, holds_back=True)
        for node, layer in layers:
            sums = statistics.of(node, layer)
            run.advance_before(node.next)
            records.append(_correct(node, layer, sums))
    for node, _ in layers:
        annotate_formats(node)
    note_fallbacks(logger, records, "correct_bias")
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
    split, plain, weight = sums.split, plain_weight(layer).double(), wide_weight(layer).double()

    def shift(rows: InputSums) -> Tensor:
        """Return the sum of the errors of each channel, without a correction."""
        return weight @ rows.total_before - plain @ rows.total

    def fit(rows: InputSums) -> Tensor:
        return shift(rows) / rows.rows

    def error(correction: Tensor | None, rows: InputSums) -> float:
        """Return the squared error of the outputs, up to a constant of the layer."""
        if correction is None:
            return 0.0
        step = _stored_step(layer, correction)
        return float((rows.rows * step.square() - 2 * step * shift(rows)).sum())

    correction = checked_fit(fit, error, split)
    if correction is not None:
        _add(layer, correction)
    rows = split.whole or sums
    size = (weight @ rows.total_before / rows.rows).square().mean().sqrt()
    largest = 0.0 if correction is None else float(correction.abs().amax())
    return {
        "node": node.name,
        "module": str(node.target),
        "largest": largest / float(size.clamp(min=torch.finfo(torch.float32).tiny)),
        KEPT: NEAREST if correction is None else METHOD,
    }


def _stored_step(layer: QuantizedModule, correction: Tensor) -> Tensor:
    """Return the change of the bias by `correction`, as the layer will round it."""
    bias = cast(Tensor | None, layer.bias)
    if bias is None:
        return correction
    form = with_stored_scale(layer, "bias", layer.quantizers["bias"])
    corrected = (bias.detach().double() + correction.to(bias.device)).to(bias.dtype)
    step: Tensor = form(corrected).double() - form(bias.detach()).double()
    return step


def _add(layer: QuantizedModule, correction: Tensor) -> None:
    if cast(Tensor | None, layer.bias) is None:
        layer.set_formats(
            {**layer.config, "bias_width": "NA"}, {**layer.quantizers, "bias": Bypass()}
        )
    add_to_bias(layer, correction)
