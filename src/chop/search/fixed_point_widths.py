"""Spaces of fixed-point widths per layer; observed values set the binary point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.actions.fixed_point import OPERANDS, Ranges, fraction_bits
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.passes import quantize_transform_pass
from chop.passes.quantization_rules import quantizable_ops
from chop.search.space import Choice, Space

WIDTHS = (3, 4, 5, 6, 8)
"""Bits of the input and of the weights of each layer, to choose from."""
BIAS_WIDTH = 8
OUTPUT = {"data_out_width": 16, "data_out_frac_width": 8}
"""Output of the last layer: wide enough to keep scores apart."""


def width_space(ranges: Ranges) -> Space:
    """Return the space of the input width and weight width of each layer."""
    operands = ("data_in", "weight")
    return Space({f"{layer}.{operand}": Choice(WIDTHS) for layer in ranges for operand in operands})


def quantize_to_widths(graph: MaseGraph, ranges: Ranges, point: Mapping[str, Any]) -> MaseGraph:
    """Quantise `graph` in place to the widths of `point`; a bias has `BIAS_WIDTH` bits.

    An op that feeds a layer has the format of that layer's input: hardware rounds it once.
    """
    layers: dict[str, dict[str, Any]] = {}
    for layer, largest in ranges.items():
        config = layers[layer] = {"name": "integer"}
        for operand in OPERANDS:
            width = int(point.get(f"{layer}.{operand}", BIAS_WIDTH))
            config[f"{operand}_width"] = width
            config[f"{operand}_frac_width"] = fraction_bits(width, largest[operand])
    layers[list(layers)[-1]] |= OUTPUT
    configs = _feeders(graph, layers) | layers
    rules = {name: {"config": config} for name, config in configs.items()}
    quantize_transform_pass(graph, {"by": "name", **rules})
    return graph


def _feeders(graph: MaseGraph, layers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return configs for the ops that feed a layer, in the format of its input."""
    configs = {}
    for node in (n for n in graph.nodes if n.name in layers):
        inputs = {k: v for k, v in layers[node.name].items() if k.startswith("data_in")}
        for source in node.all_input_nodes:
            if mase_meta(source).common.mase_op in quantizable_ops():
                configs[source.name] = {"name": "integer", **inputs}
    return configs
