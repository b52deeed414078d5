"""Constructors of rows that look up names of torch and raise if torch has none.

A name that some supported versions of torch lack ends in a question mark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from chop.errors import RegistryError
from chop.ir.ops.row import BUILTIN_FUNC, MODULE_RELATED_FUNC, Op

Functions = tuple[Callable[..., Any], ...]
LAYER_PLACES = (F, torch)
TENSOR_PLACES = (torch, operator, torch.special, torch.linalg, torch.fft)
WEIGHT_BIAS = ("weight", "bias")


def layer(name: str, modules: str, functions: str = "", **columns: Any) -> Op:
    """Return a row for a module with a functional form."""
    return Op(
        name,
        columns.pop("type", MODULE_RELATED_FUNC),
        modules=_look_up(name, modules, (nn,)),
        functions=_look_up(name, functions, LAYER_PLACES),
        methods=_methods(functions),
        **columns,
    )


def tensor_op(name: str, names: str = "", type: str = BUILTIN_FUNC, **columns: Any) -> Op:
    """Return a row for torch functions, operators and tensor methods of these names."""
    names = names or name
    functions = _look_up(name, names, TENSOR_PLACES) + columns.pop("functions", ())
    return Op(name, type, functions=functions, methods=_methods(names), **columns)


def functions(names: str, place: Any) -> Functions:
    """Return the functions of these names in one module of torch."""
    return _look_up("functions", names, (place,))


def _methods(names: str) -> tuple[str, ...]:
    plain = [name.removesuffix("?") for name in names.split()]
    return tuple(name for name in plain if hasattr(torch.Tensor, name))


def _look_up(op: str, names: str, places: Iterable[Any]) -> tuple[Any, ...]:
    objects: dict[Any, None] = {}
    for name in names.split():
        plain = name.removesuffix("?")
        here = [getattr(place, plain) for place in places if hasattr(place, plain)]
        if not here and plain == name and not _methods(name):
            raise RegistryError(f"op '{op}': torch has nothing of the name '{name}'.")
        objects |= dict.fromkeys(here)
    return tuple(objects)
