"""Choose the values of quantised weights by what they do to the layers' outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.log import get_logger
from chop.nn.modules.lora import LoRALinear
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Bypass, Quantizer, ScaleInteger
from chop.nn.quantizers.scale_integer import STORED
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.calibration_data import calibration_batches
from chop.passes.graph.gptq_rounding import output_error, rounded_with_feedback
from chop.passes.graph.layer_inputs import input_rows
from chop.passes.graph.layerwise import LayerwiseRun
from chop.passes.graph.number_formats import annotate_formats
from chop.passes.graph.weight_grid import WeightGrid, weight_grid

logger = get_logger(__name__)

WEIGHT, SCALE = "weight", "weight_scale"
OPS = ("linear", "conv1d", "conv2d")
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
    Hessian. `order`: in which columns are rounded.
    """

    data: Any = None
    num_samples: int | None = None
    damping: float = 0.01
    order: Literal["best", "importance", "left_to_right"] = "best"

    def __post_init__(self) -> None:
        if not 0 < self.damping < 1:
            raise ConfigError(f"gptq.damping: must lie between 0 and 1, got {self.damping}.")


@graph_pass("gptq_transform_pass", GptqArgs, rewrites=True, preserves=False)
def gptq_transform_pass(graph: MaseGraph, args: GptqArgs) -> PassResult:
    """Round the weights of quantised layers so that the layers' outputs change least.

        quantize_transform_pass(mg, {"linear": {"config": {
            "name": "scale_integer", "weight_width": 4, "weight_granularity": "group",
            "weight_group_size": 128, "data_in_width": "NA", "bias_width": "NA"}}})
        gptq_transform_pass(mg, {"data": batches})

    Linear layers and convolutions are taken in the order in which they run, each on the outputs
    of those before it as they are by then. Ranges of groups and blocks are searched too; integers
    keep theirs in a buffer, `weight_scale`. Every weight stays a value of its format. Rounded
    weights are parameters of the graph's own: the model it was made from keeps its weights. A
    weight that other nodes share is left to plain rounding.
    `info["layers"]` has the signal-to-noise ratio of each layer's output in dB, rounded plainly
    and rounded so.
    """
    layers = list(_layers(graph))
    if not layers:
        raise ConfigError("gptq: the graph has no quantised weight. Run quantize_transform_pass.")
    batches = calibration_batches(args.data, args.num_samples, "gptq.data")
    records = []
    with LayerwiseRun(graph, batches, "gptq.data") as run:
        hessians = _Hessians(run)
        for number, (node, layer) in enumerate(layers, 1):
            logger.info("gptq: layer %d of %d, %s", number, len(layers), node.target)
            records.append(_round_layer(node, layer, hessians, args))
    for node, _ in layers:
        annotate_formats(node)
    return graph, {"layers": records}


def _layers(graph: MaseGraph) -> Iterator[tuple[fx.Node, QuantizedModule]]:
    """Nodes and layers whose weight is quantised and nobody else's, each layer once."""
    owners = Counter(id(p) for _, p in graph.model.named_parameters(remove_duplicate=False))
    read = {str(n.target) for n in graph.fx_graph.nodes if n.op == "get_attr"}
    seen: set[int] = set()
    for node in graph.fx_graph.nodes:
        layer = quantized_layer(node)
        if layer is None or id(layer) in seen:
            continue
        seen.add(id(layer))
        own = layer._parameters.get(WEIGHT)
        if own is None or owners[id(own)] > 1 or f"{node.target}.{WEIGHT}" in read:
            logger.warning("gptq: '%s' shares its weight and keeps plain rounding.", node.target)
        else:
            yield node, layer


def quantized_layer(node: fx.Node) -> QuantizedModule | None:
    """The quantised linear layer or convolution that `node` calls, if it calls one."""
    if node.op != "call_module":
        return None
    module = node_module(node)
    layer = module.base_layer if isinstance(module, LoRALinear) else module
    if not isinstance(layer, QuantizedModule) or layer.op.name not in OPS:
        return None
    is_rounded = not isinstance(layer.quantizers[WEIGHT], Bypass)
    return layer if is_rounded and getattr(layer, "groups", 1) == 1 else None


class _Hessians:
    """Sums of x xᵀ over the data, made once for layers that read one value in one format."""

    def __init__(self, run: LayerwiseRun) -> None:
        self.run = run
        self.known: tuple[Any, Tensor] | None = None

    def of(self, node: fx.Node, layer: QuantizedModule) -> Tensor:
        """The Hessian of `layer`'s input, as it is when everything before has been rounded."""
        form = layer.quantizers["data_in"]
        key = (node.args, form, layer.op.name, _window(layer))
        if self.known is None or self.known[0] != key:
            self.known = (key, self._made(node, layer))
        return self.known[1]

    def _made(self, node: fx.Node, layer: QuantizedModule) -> Tensor:
        form = with_stored_scale(layer, "data_in", layer.quantizers["data_in"])
        total: Tensor | None = None
        for x in self.run.operands(node):
            rows = input_rows(layer, form(x)).float()
            product = (rows.T @ rows).double()
            total = product if total is None else total + product
        assert total is not None, "a run has batches"
        return total


def _window(layer: nn.Module) -> tuple[Any, ...]:
    return tuple(getattr(layer, k, None) for k in ("kernel_size", "stride", "padding", "dilation"))


def _round_layer(
    node: fx.Node, layer: QuantizedModule, hessians: _Hessians, args: GptqArgs
) -> dict[str, Any]:
    form: Quantizer = layer.quantizers[WEIGHT]
    weight: Tensor = layer.weight.detach()  # type: ignore[operator]
    grid = weight_grid(form, weight.shape, f"gptq: '{node.target}'")
    hessian = hessians.of(node, layer)
    wide = weight if weight.dtype == torch.float64 else weight.float()
    flat = wide.reshape(weight.shape[0], -1)
    before = output_error(_plain(layer, form).reshape(flat.shape) - flat, hessian)
    choices = []
    for by_importance in ORDERS[args.order]:
        rounded, ranges = rounded_with_feedback(
            flat, hessian, grid, damping=args.damping, by_importance=by_importance
        )
        result = _settled(grid, rounded.to(flat.dtype), ranges.to(flat.dtype))
        choices.append((output_error(result - flat, hessian), result, ranges))
    after, result, ranges = min(choices, key=lambda choice: choice[0])
    signal = output_error(flat, hessian)
    if after < before:
        _put(layer, grid, result.reshape(weight.shape).to(weight.dtype), ranges.to(flat.dtype))
    return {
        "node": node.name,
        "module": str(node.target),
        "plain": decibels(signal, before),
        "rounded": decibels(signal, min(after, before)),
    }


def _plain(layer: QuantizedModule, form: Quantizer) -> Tensor:
    found: Tensor = with_stored_scale(layer, WEIGHT, form)(layer.weight.detach())  # type: ignore[operator]
    return found


def _settled(grid: WeightGrid, rounded: Tensor, ranges: Tensor) -> Tensor:
    """What the layer will make of the rounded weight: formats that measure may measure anew."""
    if isinstance(grid.quantizer, ScaleInteger):
        return grid.round(rounded, ranges[:, grid.groups])
    return grid.quantizer.quantize(rounded)


def _put(layer: QuantizedModule, grid: WeightGrid, weight: Tensor, ranges: Tensor) -> None:
    trains = layer.weight.requires_grad
    layer.weight = nn.Parameter(weight, requires_grad=bool(trains))
    form = grid.quantizer
    if isinstance(form, ScaleInteger):
        store_scales(layer, form, grid.scales(ranges))


def store_scales(layer: QuantizedModule, form: ScaleInteger, scales: Tensor) -> None:
    """Let the layer keep the scales of its weight, one for each row and group."""
    shape = {"tensor": (), "channel": (scales.shape[0],)}.get(form.granularity)
    kept = scales if shape is None else scales.flatten()[: math.prod(shape)].reshape(shape)
    if form.granularity == "group":
        kept = scales.reshape(*cast(Tensor, layer.weight).shape[:-1], -1)
    layer.register_buffer(SCALE, kept.clone())
    layer.set_formats(
        {**layer.config, SCALE: STORED}, {**layer.quantizers, WEIGHT: replace(form, scale=STORED)}
    )


def decibels(signal: float, noise: float) -> float:
    """Ten times the logarithm of a ratio of powers."""
    return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)
