"""Every layer and function in every number format.

>>> from chop.nn.quantized.modules.linear import LinearInteger
>>> layer = LinearInteger(4, 8, config={"data_in_width": 8, "weight_width": 8})
>>> from chop.nn.quantized import quantized_module_map
>>> quantized_module_map["linear_integer"] is LinearInteger
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chop.nn.quantized.convert import from_float as from_float
    from chop.nn.quantized.frozen import cache_limit as cache_limit
    from chop.nn.quantized.frozen import cached_bytes as cached_bytes
    from chop.nn.quantized.frozen import clear_caches as clear_caches
    from chop.nn.quantized.frozen import set_cache_limit as set_cache_limit
    from chop.nn.quantized.functional import quantized_func_map as quantized_func_map
    from chop.nn.quantized.layer import QuantizedModule as QuantizedModule
    from chop.nn.quantized.modules import quantized_module_map as quantized_module_map

__all__ = [
    "QuantizedModule",
    "cache_limit",
    "cached_bytes",
    "clear_caches",
    "from_float",
    "quantized_func_map",
    "quantized_module_map",
    "set_cache_limit",
]

_LAZY = {
    "QuantizedModule": "layer",
    "cache_limit": "frozen",
    "cached_bytes": "frozen",
    "clear_caches": "frozen",
    "set_cache_limit": "frozen",
    "from_float": "convert",
    "quantized_func_map": "functional",
    "quantized_module_map": "modules",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that the file of one layer does not make the classes of all.
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    if name[0].isupper():  # the name of a layer
        layer = getattr(importlib.import_module(f"{__name__}.modules"), name, None)
        if layer is not None:
            return layer
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
