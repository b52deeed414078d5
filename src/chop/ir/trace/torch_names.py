"""How torch functions, operators and methods are named in a graph."""

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
"""What gives as many tensors as a size says, its arguments, and their names in torch."""
TENSOR_GETTERS = {"T", "mT", "H", "mH", "real", "imag", "data", "grad"}
NUMBER_READS = {"item": "item", "__int__": "item", "__float__": "item", "__index__": "item"}
VALUE_READS = {"__bool__", "is_nonzero", "tolist", "numpy", "__array__", "equal", "allclose"}
INPLACE_OPERATORS = {
    "__iadd__": operator.iadd,
    "__isub__": operator.isub,
    "__imul__": operator.imul,
    "__itruediv__": operator.itruediv,
    "__idiv__": operator.itruediv,
    "__ifloordiv__": operator.ifloordiv,
    "__ipow__": operator.ipow,
    "__iand__": operator.iand,
    "__ior__": operator.ior,
    "__ixor__": operator.ixor,
    "__imod__": operator.imod,
}
OPERATORS = {
    "__add__": operator.add,
    "__sub__": operator.sub,
    "__mul__": operator.mul,
    "__truediv__": operator.truediv,
    "__div__": operator.truediv,
    "__floordiv__": operator.floordiv,
    "__mod__": operator.mod,
    "__pow__": operator.pow,
    "__matmul__": operator.matmul,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__abs__": abs,
    "__invert__": operator.invert,
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
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
"""Operators written in Python: torch gives them the name of the method they call."""
METHOD_OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "true_divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
"""`x + y` reaches torch as the method `add`; with two plain operands it is written as `+`."""
SIDE_EFFECTS = {operator.setitem, *INPLACE_OPERATORS.values()}
DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""Python's types, which torch takes for dtypes."""
PLAIN_TYPES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    range,
)


def names_mutation(name: str) -> bool:
    """torch ends the names of in-place operations in one underscore; Python keywords too."""
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_")


def fx_target(
    function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, Any, tuple[Any, ...]]:
    """How fx names a torch function: op, target and arguments in fx's order."""
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
    return (
        names_mutation(name)
        or name in INPLACE_OPERATORS
        or kwargs.get("inplace") is True
        or kwargs.get("out") is not None
    )
