"""Size of a graph: parameters, bits, bytes, zeros."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import nn

from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.kernels.layers import PACKED_LAYERS, QLinearInt8
from chop.nn.modules.coded import CodedLinear
from chop.passes import calculate_avg_bits_mg_analysis_pass, calculate_sparsity_analysis_pass


def model_size(graph: MaseGraph) -> dict[str, Any]:
    """Return parameters, bits per weight and activation, stored bytes and shares of zeros.

    Packed weights count as parameters, with the bytes of their codes and scales.
    `sparsity`: zeros in the weights of linear and convolution layers. `model_sparsity`: zeros in
    all parameters.
    """
    _, bits = calculate_avg_bits_mg_analysis_pass(graph)
    _, sparsity = calculate_sparsity_analysis_pass(graph)
    packed = _packed_sizes(graph.model)
    return {
        "parameters": sum(p.numel() for p in graph.model.parameters()) + packed.elements,
        "weight_bits": _average_bits(graph, bits, packed),
        "activation_bits": bits["data_avg_bit"],
        "bytes": _bytes(graph, bits) + packed.bytes,
        "sparsity": sparsity["sparsity"],
        "model_sparsity": sparsity["model_sparsity"],
    }


class PackedSizes(NamedTuple):
    """Elements of all packed weights, and the bytes of their codes, scales and offsets."""

    elements: int
    bytes: int


def _packed_sizes(model: nn.Module) -> PackedSizes:
    """Return the sizes of the packed weights, which are no parameters; each counts once."""
    codes = {id(m.codes): m for m in model.modules() if isinstance(m, PACKED_LAYERS)}
    elements = 0
    for layer in codes.values():
        weight: Any = layer.weight if not isinstance(layer, QLinearInt8) else None
        rows = layer.codes.shape if weight is None else (*layer.codes.shape[:-1], weight.columns)
        elements += math.prod(rows)
    decoded = [m for m in model.modules() if isinstance(m, CodedLinear)]
    elements += sum(m.out_features * m.in_features for m in decoded)
    stored = {id(t): t for layer in (*codes.values(), *decoded) for t in layer.buffers()}
    return PackedSizes(elements, sum(t.nbytes for t in stored.values()))


def _average_bits(graph: MaseGraph, bits: dict[str, Any], packed: PackedSizes) -> float | None:
    """Return the bits per weight of layers with a format and of packed layers."""
    own = sum(p.numel() for p in _in_format(graph, bits).values())
    count = own + packed.elements
    if not packed.elements or not count:
        return bits["w_avg_bit"]  # type: ignore[no-any-return]
    return float((own * (bits["w_avg_bit"] or 0) + 8 * packed.bytes) / count)


def _in_format(graph: MaseGraph, bits: dict[str, Any]) -> dict[int, nn.Parameter]:
    """Return the parameters of the layers whose bits are known, by identity."""
    named = {row["name"] for row in bits["table"]}
    layers = [n for n in graph.nodes if n.op == "call_module" and n.name in named]
    return {id(p): p for n in layers for p in node_module(n).parameters()}


def _bytes(graph: MaseGraph, bits: dict[str, Any]) -> int:
    """Return the bytes of all parameters; layers with a format are stored in it."""
    counted = _in_format(graph, bits)
    in_format = sum(p.numel() for p in counted.values()) * (bits["w_avg_bit"] or 0) / 8
    rest = (p for p in graph.model.parameters() if id(p) not in counted)
    return round(in_format + sum(p.numel() * p.element_size() for p in rest))
