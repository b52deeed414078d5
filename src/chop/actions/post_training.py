"""Quantise with data and without training: formats under a budget, weights rounded by effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes import (
    allocate_bits_analysis_pass,
    gptq_transform_pass,
    quantize_transform_pass,
    sensitivity_analysis_pass,
)

WIDTHS = (2, 3, 4, 5, 6, 8)
"""Bits of a weight's elements to choose from, layer by layer."""
BUDGET_FORMATS = ("mxint", "block_fp")
"""Formats that an average of bits can be asked of: a width, and exponents shared by blocks."""


def weight_formats(name: str) -> dict[str, dict[str, Any]]:
    """Configs of a layer whose weight alone is in the format `name`, one for each width."""
    if name not in BUDGET_FORMATS:
        raise ConfigError(
            f"quantize.bits: chooses widths of {' or '.join(BUDGET_FORMATS)}, not of '{name}'."
        )
    return {
        f"{name}{width}": {
            "name": name,
            "weight_width": width,
            "data_in_width": "NA",
            "bias_width": "NA",
        }
        for width in WIDTHS
    }


def rules_for_bits(
    graph: MaseGraph, batches: Sequence[Any], bits: float, form: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of quantize_transform_pass for `bits` per weight on average, and what they cost.

    Of all assignments of widths to layers it is the one with the least predicted loss.
    """
    formats = weight_formats(form)
    _, found = sensitivity_analysis_pass(graph, {"data": batches, "formats": formats})
    _, chosen = allocate_bits_analysis_pass(graph, {**found, "budget": bits})
    told = {"assignment": chosen["assignment"], "bits": chosen["cost"], "loss": chosen["loss"]}
    return chosen["config"], told


def quantize_with_data(
    graph: MaseGraph, rules: dict[str, Any], batches: Sequence[Any], method: str
) -> dict[str, Any]:
    """Quantise by `rules`, and round the weights by `method`; what was done to each layer."""
    _, info = quantize_transform_pass(graph, rules)
    if method == "nearest":
        return {"quantized": info["quantized"]}
    _, rounded = gptq_transform_pass(graph, {"data": batches})
    return {"quantized": info["quantized"], "layers": rounded["layers"]}
