"""The formats and methods of this package that are compared, composed by its public calls.

To add a method, add a row to METHODS: the names are those of `mase quantize --method`. To add a
format that the other tools lack, add a row to FORMATS.
"""

from __future__ import annotations

from typing import Any

from schemes import SCHEMES, Scheme
from subjects import Subject
from torch import nn

LONGER = {"start": "gptq", "steps": 600, "layers_per_block": 6}
"""Whole layers of a transformer at a time."""
METHODS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "nearest": ("nearest", {}),
    "gptq": ("gptq", {}),
    "gptq equal": ("gptq", {"gptq": {"rows": "equal"}}),
    "awq+gptq": ("awq,gptq", {}),
    "smooth+gptq": ("smooth,gptq", {}),
    "rotate+gptq": ("rotate,gptq", {}),
    "gptq+bias": ("gptq,correct_bias", {}),
    "learned": ("learned_rounding", {"learned_rounding": {"start": "gptq"}}),
    "learned+": ("learned_rounding", {"learned_rounding": LONGER}),
}
"""Name in the table -> methods, with commas between, and further options of each."""
UNQUANTISED = {"data_in_width": "NA", "bias_width": "NA"}
FORMATS: dict[str, dict[str, Any]] = {
    "MXINT4": {"name": "mxint", "weight_width": 4, "weight_block_size": 32, **UNQUANTISED},
    "MXFP4": {
        "name": "mxfp",
        "weight_element": "e2m1",
        "weight_block_size": 32,
        "data_in_element": "NA",
        "bias_element": "NA",
    },
    "NVFP4": {"name": "nvfp4", "data_in_name": "NA", "bias_name": "NA"},
    "block_fp4": {"name": "block_fp", "weight_width": 4, "weight_block_size": 32, **UNQUANTISED},
}
"""Weights alone in formats with shared exponents."""


def rules(subject: Subject, model: nn.Module, scheme: str) -> dict[str, Any]:
    """Arguments of quantize_transform_pass: every linear layer but the head, by its name."""
    found: dict[str, Any] = {"by": "name"}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name not in subject.head:
            config = FORMATS.get(scheme) or _integers(SCHEMES[scheme], layer.in_features)
            found[name] = {"config": config}
    return found


def _integers(scheme: Scheme, inputs: int) -> dict[str, Any]:
    grouped = {"weight_granularity": "group", "weight_group_size": scheme.group}
    by_token = {
        "data_in_width": scheme.activation,
        "data_in_granularity": "group",
        "data_in_group_size": inputs,  # one scale for all that a token brings to the layer
    }
    return {
        "name": "scale_integer",
        "weight_width": scheme.bits,
        "weight_narrow": False,
        **(grouped if scheme.group else {"weight_granularity": "channel"}),
        **(by_token if scheme.activation else {"data_in_width": "NA"}),
        "bias_width": "NA",
    }
