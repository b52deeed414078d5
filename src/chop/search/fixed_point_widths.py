"""Spaces of fixed-point widths, one for each layer; the values seen place the binary point."""

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
"""Bits to choose from, for the input and for the weights of each layer."""
BIAS_WIDTH = 8
OUTPUT = {"data_out_width": 16, "data_out_frac_width": 8}
"""Of the last layer: wide enough that no two scores are rounded to the same."""


def width_space(ranges: Ranges) -> Space:
    """For each layer the width of its input and of its weights."""
    operands = ("data_in", "weight")
    return Space({f"{layer}.{operand}": Choice(WIDTHS) for layer in ranges for operand in operands})


def quantize_to_widths(graph: MaseGraph, ranges: Ranges, point: Mapping[str, Any]) -> MaseGraph:
    """`graph` in the widths of `point`, which is changed; a bias has `BIAS_WIDTH` bits.

    What feeds a layer takes the format of that layer's input: hardware rounds it once.
    """
    layers = {layer: _layer(layer, largest, point) for layer, largest in ranges.items()}
    layers[list(layers)[-1]] |= OUTPUT
    rules = {
        name: {"config": config} for name, config in {**_feeders(graph, layers), **layers}.items()
    }
    quantize_transform_pass(graph, {"by": "name", **rules})
    return graph


def _feeders(graph: MaseGraph, layers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The ops that feed a layer, in the format of its input."""
    found = {}
    for node in (n for n in graph.nodes if n.name in layers):
        taken = {k: v for k, v in layers[node.name].items() if k.startswith("data_in")}
        for source in node.all_input_nodes:
            if mase_meta(source).common.mase_op in quantizable_ops():
                found[source.name] = {"name": "integer", **taken}
    return found


def _layer(layer: str, largest: Mapping[str, float], point: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {"name": "integer"}
    for operand in OPERANDS:
        width = int(point.get(f"{layer}.{operand}", BIAS_WIDTH))
        config[f"{operand}_width"] = width
        config[f"{operand}_frac_width"] = fraction_bits(width, largest[operand])
    return config
