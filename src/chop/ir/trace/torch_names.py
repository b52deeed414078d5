"""Names of torch functions, operators and methods in a graph."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from typing import Any

import torch

SIZE_METHODS = {"size", "numel", "nelement", "__len__", "stride", "storage_offset"}
SIZE_GETTERS = {"shape"}
RANK_METHODS = {"dim", "ndimension"}
PARTING = {"unbind": ("self", "dim"), "split": ("self", "part", "dim")}
PARTING["chunk"] = PARTING["split"]
PARTING_ALIASES = {
    "input": "self",
    "tensor": "self",
    "split_size": "part",
    "split_size_or_sections": "part",
    "chunks": "part",
}
"""Arguments of functions that return as many tensors as a size, and torch's names for them."""
TENSOR_GETTERS = {"T", "mT", "H", "mH", "real", "imag", "data", "grad"}
NUMBER_READS = {"item": "item", "__int__": "item", "__float__": "item", "__index__": "item"}
VALUE_READS = {"__bool__", "is_nonzero", "tolist", "numpy", "__array__", "equal", "allclose"}
INPLACE_OPERATORS = {
    f"__i{name}__": getattr(operator, f"i{name}")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "and", "or", "xor", "mod")
} | {"__idiv__": operator.itruediv}
_OPERATOR_NAMES = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "invert"),
    *("getitem", "setitem"),
)
OPERATORS: dict[str, Any] = {
    **{f"__{name}__": getattr(operator, f"__{name}__") for name in _OPERATOR_NAMES},
    "__div__": operator.truediv,
    "__abs__": abs,
    **INPLACE_OPERATORS,
}
SWAPPED = {
    f"__r{name[2:]}": function
    for name, function in OPERATORS.items()
    if f"__r{name[2:]}" in dir(torch.Tensor)
}
DUNDERS = {
    getattr(torch.Tensor, name): name
    for name in (*OPERATORS, *SWAPPED)
    if inspect.isfunction(getattr(torch.Tensor, name, None))
}
"""Operators written in Python, to which torch gives the name of the method they call."""
METHOD_OPERATORS = {
    **{n: getattr(operator, n) for n in ("add", "sub", "mul", "pow", "matmul")},
    **{n: getattr(operator, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    "div": operator.truediv,
    "true_divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
}
"""Method -> operator: torch receives `x + y` as the method `add`."""
SIDE_EFFECTS = {operator.setitem, *INPLACE_OPERATORS.values()}
DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""Python type -> the dtype that torch uses for it."""
PLAIN_TYPES = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def names_mutation(name: str) -> bool:
    """Return True for the name of an in-place operation, which ends in one underscore."""
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_")


def fx_target(
    function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, Any, tuple[Any, ...]]:
    """Return fx's op, target and arguments for a call of a torch function."""
    name = DUNDERS.get(function, name)
    is_method = getattr(torch.Tensor, name, None) == function
    if is_method and name in OPERATORS:
        return "call_function", OPERATORS[name], args
    if is_method and name in METHOD_OPERATORS and len(args) == 2 and not kwargs:
        return "call_function", METHOD_OPERATORS[name], args
    if is_method and name in SWAPPED:
        return "call_function", SWAPPED[name], (args[1], args[0], *args[2:])
    if is_method and isinstance(args[0], torch.Tensor):
        return "call_method", name, args
    return "call_function", function, args


def works_in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Return True if a call writes to one of its arguments."""
    has_target = kwargs.get("inplace") is True or kwargs.get("out") is not None
    return has_target or names_mutation(name) or name in INPLACE_OPERATORS
