"""Quantised functions: `add_integer`, `matmul_mxint` … for every op and format.

add_integer(x, y, config={"data_in_width": 8, "data_in_frac_width": 4})
"""

from __future__ import annotations

from chop.nn.quantized.function import QuantizedFunction, make_functions

quantized_func_map: dict[str, QuantizedFunction] = make_functions()
"""`"add_integer"` -> the function."""

globals().update(quantized_func_map)
