"""Size of a graph: parameters, bits, bytes, zeros."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.passes import calculate_avg_bits_mg_analysis_pass, calculate_sparsity_analysis_pass


def model_size(graph: MaseGraph) -> dict[str, Any]:
    """Return parameters, bits per weight and activation, stored bytes and shares of zeros.

    `sparsity`: zeros in the weights of linear and convolution layers. `model_sparsity`: zeros in
    all parameters.
    """
    _, bits = calculate_avg_bits_mg_analysis_pass(graph)
    _, sparsity = calculate_sparsity_analysis_pass(graph)
    return {
        "parameters": sum(p.numel() for p in graph.model.parameters()),
        "weight_bits": bits["w_avg_bit"],
        "activation_bits": bits["data_avg_bit"],
        "bytes": _bytes(graph, bits),
        "sparsity": sparsity["sparsity"],
        "model_sparsity": sparsity["model_sparsity"],
    }


def _bytes(graph: MaseGraph, bits: dict[str, Any]) -> int:
    """Return the bytes of all parameters; layers with a format are stored in it."""
    named = {row["name"] for row in bits["table"]}
    layers = [n for n in graph.nodes if n.op == "call_module" and n.name in named]
    counted = {id(p): p for n in layers for p in node_module(n).parameters()}
    in_format = sum(p.numel() for p in counted.values()) * (bits["w_avg_bit"] or 0) / 8
    rest = (p for p in graph.model.parameters() if id(p) not in counted)
    return round(in_format + sum(p.numel() * p.element_size() for p in rest))
