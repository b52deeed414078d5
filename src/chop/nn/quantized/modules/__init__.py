"""Quantised layers, one file per op; each class is a torch layer and a format.

`LAYER_CLASSES[nn.Linear, Integer]` is `linear.LinearInteger`.
"""

from __future__ import annotations

import importlib

from torch import nn

from chop.ir.ops import OPS
from chop.nn.quantized.layer import QUANTIZED_LAYERS, QuantizedModule, layer_name
from chop.nn.quantizers import FORMATS, Quantizer

LAYER_CLASSES: dict[tuple[type[nn.Module], type[Quantizer]], type[QuantizedModule]] = {
    (base, form): getattr(importlib.import_module(f"{__name__}.{name}"), layer_name(base, form))
    for name in QUANTIZED_LAYERS
    for base in OPS[name].modules
    for form in FORMATS.values()
}

quantized_module_map: dict[str, type[QuantizedModule]] = {
    f"{name}_{form.name}": LAYER_CLASSES[OPS[name].modules[0], form]
    for name in QUANTIZED_LAYERS
    for form in FORMATS.values()
}
"""`"linear_integer"` -> `LinearInteger`."""

globals().update({layer.__name__: layer for layer in LAYER_CLASSES.values()})
