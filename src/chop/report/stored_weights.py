"""Storage of a node: sizes, number format, zeros and histogram of its weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.ops import node_module
from chop.kernels.ops import PackedTensor
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer
from chop.passes.rewrite.node_formats import node_quantizers, role_of

BINS = 40
"""Bins of a histogram, about."""
SAMPLE = 1 << 18
"""Values that a histogram of a larger tensor counts, about; they are evenly spaced."""


@dataclass(frozen=True)
class StoredParameter:
    """Parameter: its elements and their bits. Nodes that share it have the same `key`."""

    key: int
    elements: int
    bits: float

    @property
    def bytes(self) -> float:
        """Bytes of storage."""
        return self.elements * self.bits / 8


def stored_tensors(node: fx.Node) -> list[StoredParameter]:
    """Return the floating-point parameters that `node` reads, in their quantised formats."""
    if node.op != "call_module":
        parameter = _attribute(node)
        return [] if parameter is None else [_stored(parameter, None)]
    module, quantizers = node_module(node), node_quantizers(node) or {}
    stored = []
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            role = role_of(name.removeprefix("parametrizations."), quantizers)
            stored.append(_stored(parameter, quantizers.get(role or "")))
    packed = packed_weight(node)
    if packed is not None:
        place = packed.codes.data_ptr() or id(module)  # tied layers share their bytes
        stored.append(StoredParameter(place, math.prod(packed.shape), packed_bits(packed)))
    return stored


def packed_weight(node: fx.Node) -> PackedTensor | None:
    """Return the weight of a packed layer, None for other nodes."""
    weight = getattr(node_module(node), "weight", None) if node.op == "call_module" else None
    return weight if isinstance(weight, PackedTensor) else None


def packed_bits(packed: PackedTensor) -> float:
    """Return the bits per element, scales included."""
    return 8 * packed.nbytes / math.prod(packed.shape)


def _stored(parameter: nn.Parameter, quantizer: Quantizer | None) -> StoredParameter:
    is_float = quantizer is None or quantizer.is_bypass
    bits = 8.0 * parameter.element_size() if is_float else quantizer.bits  # type: ignore[union-attr]
    return StoredParameter(id(parameter), parameter.numel(), bits)


def _attribute(node: fx.Node) -> nn.Parameter | None:
    """Return the floating-point parameter of a get_attr node, None for other nodes."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return None
    *path, name = str(node.target).split(".")
    value = getattr(owner.get_submodule(".".join(path)), name, None)
    return value if isinstance(value, nn.Parameter) and value.is_floating_point() else None


def weight_of(node: fx.Node) -> Tensor | None:
    """Return a layer's weight, pruned but not quantised, or None."""
    is_module = node.op == "call_module"
    weight = getattr(node_module(node), "weight", None) if is_module else _attribute(node)
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or not weight.numel():
        return None
    return None if weight.is_meta else weight.detach()


def weight_record(node: fx.Node) -> dict[str, Any] | None:
    """Return shape and sparsity, and extremes, mean and histogram of the quantised weight."""
    weight = weight_of(node)
    if weight is None:
        return None
    rounded = _rounded(node, weight)
    low, high = (float(v) for v in torch.aminmax(rounded))
    return {
        "shape": list(weight.shape),
        "low": low,
        "high": high,
        "mean": float(rounded.mean(dtype=torch.float32)),
        "sparsity": int((weight == 0).sum()) / weight.numel(),
        "histogram": histogram(rounded),
    }


def _rounded(node: fx.Node, weight: Tensor) -> Tensor:
    """Return the weight that the layer computes with."""
    layer = node_module(node) if node.op == "call_module" else None
    if isinstance(layer, QuantizedModule):
        stored = layer.stored_values().get("weight")
        if stored is not None:
            return stored.values
    quantizer = (node_quantizers(node) or {}).get("weight")
    return weight if quantizer is None else quantizer(weight)


def histogram(values: Tensor) -> dict[str, Any] | None:
    """Return counts in about `BINS` equal bins, or None if no value is finite.

    Bins of quantised values are as wide as a whole number of the format's steps, so that all bins
    cover equally many levels.
    """
    flat = values.reshape(-1)
    flat = flat[:: max(1, flat.numel() // SAMPLE)].float()
    flat = flat[flat.isfinite()]
    if not flat.numel():
        return None
    low, width, bins = _bins(flat)
    counts = torch.histc(flat, bins, low, low + bins * width)
    sample = {"sampled": flat.numel()} if flat.numel() < values.numel() else {}
    return {"low": low, "width": width, "counts": [int(c) for c in counts], **sample}


def _bins(flat: Tensor) -> tuple[float, float, int]:
    """Return the start of the first bin, the width of a bin and the number of bins."""
    low, high = float(flat.min()), float(flat.max())
    if low == high:
        return low - 0.5, 1.0, 1
    steps = flat[:: max(1, flat.numel() // 4096)].sort().values.diff()
    step = float(steps[steps > 0].min()) if steps.any() else high - low
    levels = round((high - low) / step) + 1
    if levels > 8 * BINS:  # too many to show
        return low, (high - low) / BINS, BINS
    per_bin = math.ceil(levels / BINS)
    return low - step / 2, per_bin * step, math.ceil(levels / per_bin)
