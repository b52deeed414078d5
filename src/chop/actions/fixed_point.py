"""Fixed point for layers with weights: one split of the width, or one fitted to each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import find_op
from chop.passes import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    profile_statistics_analysis_pass,
)

OPERANDS = ("data_in", "weight", "bias")
OP = "linear"
FITTED = (OP, "conv1d", "conv2d")
"""Ops whose formats are fitted: those with these operands that hardware has too."""
STATISTIC = "range_min_max"
ROLES = {"data_in_0": "data_in", "weight": "weight", "bias": "bias"}
"""Name of an argument in the metadata -> operand of the config."""

Ranges = dict[str, dict[str, float]]


def fixed_point_config(width: int, frac_widths: Mapping[str, int]) -> dict[str, Any]:
    """Return the config of a layer: `width` bits with `frac_widths[operand]` fractional bits."""
    config: dict[str, Any] = {"name": "integer"}
    for operand in OPERANDS:
        config[f"{operand}_width"] = width
        config[f"{operand}_frac_width"] = frac_widths[operand]
    return config


def uniform_fixed_point(width: int, frac_width: int) -> dict[str, Any]:
    """Return arguments of quantize_transform_pass with one format for all linear layers."""
    config = fixed_point_config(width, dict.fromkeys(OPERANDS, frac_width))
    return {"by": "type", "default": {"config": {"name": None}}, OP: {"config": config}}


def fitted_fixed_point(ranges: Ranges, width: int) -> dict[str, Any]:
    """Return arguments of quantize_transform_pass with a format for each operand of each layer.

    Each has the most fractional bits that hold its largest magnitude in `ranges`.
    """
    args: dict[str, Any] = {"by": "name", "default": {"config": {"name": None}}}
    for node, largest in ranges.items():
        fractions = {name: fraction_bits(width, largest.get(name, 0.0)) for name in OPERANDS}
        args[node] = {"config": fixed_point_config(width, fractions)}
    return args


def fraction_bits(width: int, largest: float) -> int:
    """Return the most fractional bits of a signed number of `width` bits that reaches `largest`.

    >>> [fraction_bits(8, x) for x in (0.4, 0.99, 1.0, 5.0)]
    [8, 7, 7, 4]
    """
    if largest == 0.0:
        return width - 1
    # 1.0 saturates to 1 - 2**-7 with 7 fraction bits: half a step is worth a bit everywhere else
    return width - 1 - math.ceil(math.log2(largest))


def observe_ranges(graph: MaseGraph, batches: Iterable[Any]) -> Ranges:
    """Return the largest magnitude of each operand of each layer with an op in `FITTED`.

    Missing metadata is added to the graph.
    """
    ops = [op.name for node in graph.nodes if (op := find_op(node, graph.custom_ops)) is not None]
    fitted = [name for name in FITTED if name in ops]
    if not fitted:
        raise ConfigError(
            f"quantize.fit: fits {', '.join(FITTED)}, and {type(graph.model).__name__} has "
            f"{', '.join(dict.fromkeys(ops)) or 'no layer'}."
        )
    if any("mase" not in node.meta for node in graph.nodes):
        init_metadata_analysis_pass(graph)
    if any(mase_meta(node).software.args is None for node in graph.nodes):
        add_common_metadata_analysis_pass(graph, {"add_value": False})
        add_software_metadata_analysis_pass(graph)
    was_training = graph.model.training
    graph.model.eval()
    _, info = profile_statistics_analysis_pass(
        graph,
        {
            "by": "type",
            "target_weight_nodes": fitted,
            "target_activation_nodes": fitted,
            "weight_statistics": {STATISTIC: {"abs": True}},
            "activation_statistics": {STATISTIC: {"abs": True}},
            "input_generator": list(batches),
        },
    )
    graph.model.train(was_training)
    ranges: Ranges = {}
    for row in info["table"]:
        if row["branch"] == "args" and row["name"] in ROLES:
            operands = ranges.setdefault(row["node"], {})
            operands[ROLES[row["name"]]] = float(row["stat"][STATISTIC]["max"])
    return ranges
