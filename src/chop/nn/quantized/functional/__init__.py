"""Quantised functions: `add_integer`, `matmul_mxint` … for every op and format.

add_integer(x, y, config={"data_in_width": 8, "data_in_frac_width": 4})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chop.errors import RegistryError
from chop.ir.ops import OPS
from chop.nn.quantized.function import (
    QuantizedFunction,
    find_function,
    function_name,
    quantized_functions,
)
from chop.nn.quantizers import FORMATS
from chop.registry import suggest


class _FunctionsByName(Mapping[str, QuantizedFunction]):
    """Name of op and format -> the function; it follows the ops and the formats there are."""

    def __getitem__(self, name: str) -> QuantizedFunction:
        found = find_function(name)
        if found is None:
            raise RegistryError(f"Unknown quantised function '{name}'. {suggest(name, self)}")
        return found

    def __iter__(self) -> Iterator[str]:
        ops = [OPS[name] for name in quantized_functions()]
        return (function_name(op, form) for op in ops for form in FORMATS.values())

    def __len__(self) -> int:
        return sum(1 for _ in self)


quantized_func_map: Mapping[str, QuantizedFunction] = _FunctionsByName()
"""`"add_integer"` -> the function."""


def __getattr__(name: str) -> Any:
    found = find_function(name)
    if found is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return found


def __dir__() -> list[str]:
    return [*globals(), *quantized_func_map]
