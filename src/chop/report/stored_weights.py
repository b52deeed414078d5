"""What a node stores: sizes, number format, zeros and the histogram of its weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
SAMPLE = 1 << 18
"""A histogram of a larger tensor counts about so many of its values, evenly spaced."""


@dataclass(frozen=True)
class Stored:
    """A parameter: how many elements, and the bits each takes. `key` tells shared ones apart."""

    key: int
    elements: int
    bits: float

    @property
    def bytes(self) -> float:
        """What storing it takes."""
        return self.elements * self.bits / 8


def stored_tensors(node: fx.Node) -> list[Stored]:
    """Every floating-point parameter that `node` reads, in the format it is quantised to."""
    if node.op != "call_module":
        return [_stored(id(p), p, None) for p in _attributes(node)]
    module, quantizers = node_module(node), node_quantizers(node) or {}
    found = [
        _stored(id(p), p, quantizers.get(role_of(_plain_name(name), quantizers) or ""))
        for name, p in module.named_parameters()
        if p.is_floating_point()
    ]
    packed = getattr(module, "weight", None)
    if isinstance(packed, PackedTensor):
        elements = math.prod(packed.shape)
        found.append(Stored(id(module), elements, 8 * packed.nbytes / elements))
    return found


def _plain_name(name: str) -> str:
    return name.removeprefix("parametrizations.")


def _stored(key: int, tensor: Tensor, quantizer: Quantizer | None) -> Stored:
    is_quantized = quantizer is not None and not quantizer.is_bypass
    bits = quantizer.bits if is_quantized and quantizer else 8.0 * tensor.element_size()
    return Stored(key, tensor.numel(), bits)


def _attributes(node: fx.Node) -> Iterator[nn.Parameter]:
    """The parameter that a get_attr node gives."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return
    *path, name = str(node.target).split(".")
    value = getattr(owner.get_submodule(".".join(path)), name, None)
    if isinstance(value, nn.Parameter) and value.is_floating_point():
        yield value


def weight_of(node: fx.Node) -> Tensor | None:
    """The weight of a layer, pruned as it is but before any number format; None without one."""
    if node.op == "call_module":
        weight = getattr(node_module(node), "weight", None)
    else:
        weight = next(_attributes(node), None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or not weight.numel():
        return None
    return None if weight.is_meta else weight.detach()


def weight_record(node: fx.Node) -> dict[str, Any] | None:
    """Shape, share of zeros, and of the rounded weight extremes, mean and histogram."""
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
    """The weight as the layer computes with it."""
    layer = node_module(node) if node.op == "call_module" else None
    if isinstance(layer, QuantizedModule):
        stored = layer.stored_values().get("weight")
        if stored is not None:
            return stored.values
    quantizer = (node_quantizers(node) or {}).get("weight")
    return weight if quantizer is None else quantizer(weight)


def histogram(values: Tensor) -> dict[str, Any] | None:
    """Counts in about `BINS` equal bins; None where nothing finite is there.

    Bins of rounded values are as wide as whole steps of their format, so that no bin covers one
    level more than its neighbour.
    """
    flat = values.reshape(-1)
    flat = flat[:: max(1, flat.numel() // SAMPLE)].float()
    flat = flat[flat.isfinite()]
    if not flat.numel():
        return None
    low, width, bins = _bins(flat)
    counts = torch.histc(flat, bins, low, low + bins * width)
    is_sample = flat.numel() < values.numel()
    told: Mapping[str, Any] = {"sampled": flat.numel()} if is_sample else {}
    return {"low": low, "width": width, "counts": [int(c) for c in counts], **told}


def _bins(flat: Tensor) -> tuple[float, float, int]:
    """Where the first bin starts, how wide bins are, and how many there are."""
    low, high = float(flat.min()), float(flat.max())
    if low == high:
        return low - 0.5, 1.0, 1
    steps = flat[:: max(1, flat.numel() // 4096)].sort().values.diff()
    step = float(steps[steps > 0].min()) if steps.any() else high - low
    levels = round((high - low) / step) + 1
    if levels > 8 * BINS:  # so many that it does not show
        return low, (high - low) / BINS, BINS
    per_bin = math.ceil(levels / BINS)
    return low - step / 2, per_bin * step, math.ceil(levels / per_bin)
