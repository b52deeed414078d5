"""Layers beyond torch's, and `Identity` of torch."""

from torch.nn import Identity

from chop.nn.modules.activation_mask import ActivationMask
from chop.nn.modules.lookup_tables import (
    ClassSum,
    LookupTables,
    Thermometer,
    clip_tables,
    freeze_tables,
    quantile_thresholds,
    table_network,
)
from chop.nn.modules.lora import LoRALinear
from chop.nn.modules.masked import Masked

__all__ = [
    "ActivationMask",
    "ClassSum",
    "Identity",
    "LoRALinear",
    "LookupTables",
    "Masked",
    "Thermometer",
    "clip_tables",
    "freeze_tables",
    "quantile_thresholds",
    "table_network",
]
