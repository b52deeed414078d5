"""Quantised layers whose weights a pass replaces, and how they store the new values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.ir.reclass import mask_name
from chop.log import get_logger
from chop.nn.modules.lora import adapted_layer
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import ScaleInteger
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.ptq.sites.stored_scales import store_scale
from chop.passes.ptq.solve.gptq_rounding import output_error
from chop.passes.ptq.solve.weight_grid import WeightGrid, weight_grid

logger = get_logger(__name__)

WEIGHT = "weight"
OPS = ("linear", "conv1d", "conv2d")


def layers_with_own_weights(graph: MaseGraph, who: str) -> list[tuple[fx.Node, QuantizedModule]]:
    """Return nodes and layers whose weight is quantised and nobody else's, each layer once.

    Warn of a weight that others share; raise ConfigError if no layer is left. `who` is the pass.
    """
    layers = list(_own_layers(graph, who))
    if not layers:
        raise ConfigError(f"{who}: the graph has no quantised weight. Run quantize_transform_pass.")
    return layers


def _own_layers(graph: MaseGraph, who: str) -> Iterator[tuple[fx.Node, QuantizedModule]]:
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
            logger.warning("%s: '%s' shares its weight and keeps plain rounding.", who, node.target)
        else:
            yield node, layer


def quantized_layer(node: fx.Node) -> QuantizedModule | None:
    """The quantised linear layer or convolution that `node` calls, if it calls one."""
    if node.op != "call_module":
        return None
    layer = adapted_layer(node_module(node))
    if not isinstance(layer, QuantizedModule) or layer.op.name not in OPS:
        return None
    is_rounded = not layer.quantizers[WEIGHT].is_bypass
    return layer if is_rounded and getattr(layer, "groups", 1) == 1 else None


def wide_weight(layer: QuantizedModule) -> Tensor:
    """The weight as (rows, columns), in single precision at least."""
    weight = cast(Tensor, layer.weight).detach()
    wide = weight if weight.dtype == torch.float64 else weight.float()
    return wide.reshape(weight.shape[0], -1)


def kept_places(layer: nn.Module) -> Tensor | None:
    """Where the weight is not pruned, as (rows, columns); None where nothing is."""
    mask = layer._buffers.get(mask_name(WEIGHT))
    return None if mask is None else mask.bool().flatten(1)


def layer_grid(layer: QuantizedModule, where: str) -> WeightGrid:
    """The grid that the layer's weight is rounded to."""
    weight = cast(Tensor, layer.weight)
    return weight_grid(layer.quantizers[WEIGHT], weight.shape, where, weight.device)


def plain_weight(layer: QuantizedModule) -> Tensor:
    """The weight as the layer rounds it, as (rows, columns)."""
    weight = cast(Tensor, layer.weight).detach()
    found: Tensor = with_stored_scale(layer, WEIGHT, layer.quantizers[WEIGHT])(weight)
    return found.reshape(weight.shape[0], -1)


def put_if_better(
    node: fx.Node,
    layer: QuantizedModule,
    grid: WeightGrid,
    rounded: tuple[Tensor, Tensor],
    wanted: Tensor,
    hessian: Tensor,
) -> dict[str, Any]:
    """Store a `rounded` weight, values and ranges, if its error is below that of plain rounding.

    Return the signal-to-noise ratio of the layer's output in dB, rounded plainly and as it is now.
    """
    values, ranges = rounded
    signal = output_error(wanted, hessian)
    before = output_error(plain_weight(layer) - wanted, hessian)
    after = output_error(values - wanted, hessian)
    if after < before:
        put_rounded(layer, grid, values, ranges)
    return {
        "node": node.name,
        "module": str(node.target),
        "plain": decibels(signal, before),
        "rounded": decibels(signal, min(after, before)),
    }


def put_rounded(layer: QuantizedModule, grid: WeightGrid, values: Tensor, ranges: Tensor) -> None:
    """Give the layer its rounded weight, and the scales that belong to it."""
    old = stored_weight(layer)
    kept = values.reshape(old.shape).to(old.dtype)
    layer.weight = nn.Parameter(kept, requires_grad=old.requires_grad)
    if grid.quantizer.scaled is not None:
        store_scales(layer, grid.quantizer.scaled, grid.scales(ranges.to(values.dtype)))


def store_scales(layer: QuantizedModule, form: ScaleInteger, scales: Tensor) -> None:
    """Let the layer keep the scales of its weight, one for each row and group."""
    shape = {"tensor": (), "channel": (scales.shape[0],)}.get(form.granularity)
    kept = scales if shape is None else scales.flatten()[: math.prod(shape)].reshape(shape)
    if form.granularity == "group":
        kept = scales.reshape(*cast(Tensor, layer.weight).shape[:-1], -1)
    store_scale(layer, WEIGHT, kept)


def decibels(signal: float, noise: float) -> float:
    """Ten times the logarithm of a ratio of powers."""
    return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)
