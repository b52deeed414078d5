"""Quantised layers whose weights a pass replaces, and the scales that layers store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.expert_layer import Experts
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata
from chop.ir.ops import node_module
from chop.ir.reclass import mask_name
from chop.log import get_logger
from chop.nn.modules.lora import adapted_layer
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import ScaleInteger
from chop.nn.quantizers.scale_integer import STORED
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.ptq.observe.held_back import KEPT, METHOD, NEAREST, checked_fit
from chop.passes.ptq.observe.row_sums import InputSums
from chop.passes.ptq.observe.stored_matrix import Matrix, StoredRows, weight_slices
from chop.passes.ptq.observe.watched_operands import explicit_settings
from chop.passes.ptq.solve.column_feedback import output_error
from chop.passes.ptq.solve.weight_grid import WeightGrid, weight_grid

logger = get_logger(__name__)

WEIGHT = "weight"
OPS = ("linear", "conv1d", "conv2d")
IS_APPLIED = "is_applied"


def layers_with_own_weights(graph: MaseGraph, who: str) -> list[tuple[fx.Node, QuantizedModule]]:
    """Return nodes and layers whose quantised weight no other layer has, each layer once.

    Warn of a shared weight; raise ConfigError if no layer remains. `who` is the pass.
    """
    layers = list(_own_layers(graph, who))
    if not layers:
        raise ConfigError(f"{who}: the graph has no quantised weight. Run quantize_transform_pass.")
    return layers


def _own_layers(graph: MaseGraph, who: str) -> Iterator[tuple[fx.Node, QuantizedModule]]:
    owners = Counter(id(p) for _, p in graph.model.named_parameters(remove_duplicate=False))
    read = {str(n.target) for n in graph.fx_graph.nodes if n.op == "get_attr"}
    visited: set[int] = set()
    for node in graph.fx_graph.nodes:
        layer = quantized_layer(node)
        if layer is None or id(layer) in visited:
            _note_stacked(node, who)
            continue
        visited.add(id(layer))
        own = layer._parameters.get(WEIGHT)
        if own is None or owners[id(own)] > 1 or f"{node.target}.{WEIGHT}" in read:
            logger.warning("%s: '%s' shares its weight and keeps plain rounding.", who, node.target)
        else:
            yield node, layer


def _note_stacked(node: fx.Node, who: str) -> None:
    """Warn of quantised experts in one layer: each needs sums over its own tokens."""
    layer = node_module(node) if node.op == "call_module" else None
    if isinstance(layer, Experts) and isinstance(layer, QuantizedModule):
        logger.warning(
            "%s: '%s' has all experts in one layer and keeps plain rounding. Give --method, or "
            "quantize_with_data, which make a layer for each expert.",
            who,
            node.target,
        )


def quantized_layer(node: fx.Node) -> QuantizedModule | None:
    """Return the quantised linear layer or convolution that `node` calls; None for others."""
    if node.op != "call_module":
        return None
    layer = adapted_layer(node_module(node))
    if not isinstance(layer, QuantizedModule) or layer.op.name not in OPS:
        return None
    is_rounded = not layer.quantizers[WEIGHT].is_bypass
    return layer if is_rounded and getattr(layer, "groups", 1) == 1 else None


def wide_weight(layer: QuantizedModule) -> Tensor:
    """Return the weight as (rows, columns), in single precision at least."""
    weight = cast(Tensor, layer.weight).detach()
    wide = weight if weight.dtype == torch.float64 else weight.float()
    return wide.reshape(weight.shape[0], -1)


def kept_places(layer: nn.Module) -> Tensor | None:
    """Return the mask of unpruned weights, as (rows, columns); None if nothing is pruned."""
    mask = layer._buffers.get(mask_name(WEIGHT))
    return None if mask is None else mask.bool().flatten(1)


def layer_grid(layer: QuantizedModule, where: str) -> WeightGrid:
    """Return the grid that the layer's weight is rounded to."""
    weight = cast(Tensor, layer.weight)
    return weight_grid(layer.quantizers[WEIGHT], weight, where)


def plain_weight(layer: QuantizedModule) -> Tensor:
    """Return the weight as the layer rounds it, as (rows, columns)."""
    weight = cast(Tensor, layer.weight).detach()
    rounded: Tensor = with_stored_scale(layer, WEIGHT, layer.quantizers[WEIGHT])(weight)
    return rounded.reshape(weight.shape[0], -1)


@dataclass(frozen=True)
class RoundedWeight:
    """A rounded weight: its values and ranges, and the weight whose outputs it approximates."""

    values: Tensor
    ranges: Tensor
    target: Tensor | StoredRows


def put_if_better(
    node: fx.Node,
    layer: QuantizedModule,
    grid: WeightGrid,
    fit: Callable[[InputSums], RoundedWeight],
    sums: InputSums,
    has_nan: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Store the weight that `fit` rounds, if its error is below that of plain rounding.

    It must be no worse on the rows that `sums` holds back, too, and must not make values NaN that
    are computed behind the layer, for example a logarithm: `has_nan` says so of the current weight.
    Return the signal-to-noise ratio of the layer's output in dB, of plain rounding and now, and the
    `kept` rounding.
    """
    plain, weight, split = plain_weight(layer), wide_weight(layer), sums.split

    def error(rounded: RoundedWeight | None, rows: InputSums) -> float:
        return rows.error(plain if rounded is None else rounded.values, weight)

    rounded = checked_fit(fit, error, split)
    hessian = (split.whole or sums).hessian
    target = weight if rounded is None else rounded.target
    before = after = _distance(plain, target, hessian)
    if rounded is not None:
        after = min(before, _distance(rounded.values, target, hessian))
    if rounded is not None and after < before:
        is_put = _put_unless_nan(layer, grid, rounded, has_nan)
        after = after if is_put else before
    signal = output_error(target, hessian)
    return {
        "node": node.name,
        "module": str(node.target),
        "plain": decibels(signal, before),
        "rounded": decibels(signal, after),
        KEPT: METHOD if after < before else NEAREST,
    }


def _distance(rounded: Tensor, target: Tensor | StoredRows, hessian: Matrix) -> float:
    """Return the squared error of the outputs of a rounded weight."""
    parts = weight_slices(len(target), hessian)
    return sum(output_error(rounded[rows] - target[rows], hessian) for rows in parts)


def _put_unless_nan(
    layer: QuantizedModule, grid: WeightGrid, rounded: RoundedWeight, has_nan: Callable[[], bool]
) -> bool:
    """Store a rounded weight; undo it and return False if values are NaN because of it."""
    weight, scale = stored_weight(layer), getattr(layer, f"{WEIGHT}_scale", None)
    config, forms = layer.config, layer.quantizers
    put_rounded(layer, grid, rounded.values, rounded.ranges)
    if not has_nan():
        return True
    layer.weight = weight
    if scale is None and hasattr(layer, f"{WEIGHT}_scale"):
        delattr(layer, f"{WEIGHT}_scale")
    elif scale is not None:
        store_scale(layer, WEIGHT, scale)
    layer.set_formats(config, forms)
    if not has_nan():
        return False
    put_rounded(layer, grid, rounded.values, rounded.ranges)  # others are the cause
    return True


def put_rounded(layer: QuantizedModule, grid: WeightGrid, values: Tensor, ranges: Tensor) -> None:
    """Store a rounded weight and its scales in the layer."""
    replace_weight(layer, values.reshape(stored_weight(layer).shape))
    if grid.quantizer.scaled is not None:
        store_scales(layer, grid.quantizer.scaled, grid.scales(ranges.to(values.dtype)))


def replace_weight(layer: nn.Module, values: Tensor) -> None:
    """Replace the weight of a layer by a new parameter of the same dtype."""
    old = stored_weight(layer)
    layer.weight = nn.Parameter(values.to(old.dtype), requires_grad=old.requires_grad)


def store_scales(layer: QuantizedModule, form: ScaleInteger, scales: Tensor) -> None:
    """Store the scales of a layer's weight, one for each row and group."""
    if form.granularity == "group":
        scales = scales.reshape(*cast(Tensor, layer.weight).shape[:-1], -1)
    elif form.granularity in ("tensor", "channel"):
        shape = () if form.granularity == "tensor" else (scales.shape[0],)
        scales = scales.flatten()[: math.prod(shape)].reshape(shape)
    store_scale(layer, WEIGHT, scales)


def store_scale(layer: QuantizedModule, role: str, scale: Tensor) -> None:
    """Store the scales of one operand in a buffer of `layer`."""
    form = layer.quantizers[role].scaled
    assert form is not None, f"{layer.quantizers[role]} has no scale"
    # operands that followed the weight's settings get explicit ones: they store no scales
    others = {r: q for r, q in layer.quantizers.items() if r not in (role, "data_out")}
    config = dict(layer.config)
    for other, own in others.items():
        if not any(key.startswith(f"{other}_") for key in config):
            config |= explicit_settings(own, other)
    name = f"{role}_scale"
    if hasattr(layer, name):
        delattr(layer, name)
    device = next((p.device for p in layer.parameters()), scale.device)
    layer.register_buffer(name, scale.detach().clone().to(device))
    config[name] = STORED
    layer.set_formats(config, {**layer.quantizers, role: replace(form, scale=STORED)})


def adopt_scales(node: fx.Node, layer: QuantizedModule) -> None:
    """Store the scales that calibration wrote on `node`, for formats that store scales."""
    meta = node.meta.get("mase")
    calibration = meta.software.calibration if isinstance(meta, MaseMetadata) else None
    for role, form in layer.quantizers.items():
        entry = (calibration or {}).get(role, {})
        if form.is_stored and isinstance(entry.get("scale"), Tensor) and not entry.get(IS_APPLIED):
            store_scale(layer, role, entry["scale"])
            entry[IS_APPLIED] = True


def decibels(signal: float, noise: float) -> float:
    """Return ten times the logarithm of a ratio of powers."""
    return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)
