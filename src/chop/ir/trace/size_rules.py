"""Result sizes of the most frequent operations.

Computing symbolic sizes by torch costs milliseconds per operation. A rule returns a tensor of the
right sizes, an operand if its sizes do not change, or None if torch must compute them. To add a
rule, add a row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_KEEPING_MODULES = (
    *(nn.Identity, nn.Dropout, nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.BatchNorm2d),
    *(nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softmax, nn.GroupNorm),
)
_KEEPING_FUNCTIONS = {
    *(F.gelu, F.silu, F.relu, F.softmax, F.dropout, F.layer_norm, F.normalize),
    *(torch.tanh, torch.sigmoid, torch.rsqrt, torch.exp, torch.sqrt, torch.softmax, operator.neg),
}
_KEEPING_METHODS = {
    *("contiguous", "clone", "detach", "float", "neg", "cos", "sin", "exp", "tanh", "sigmoid"),
    *("rsqrt", "sqrt", "softmax", "to", "type_as"),
}
_ELEMENTWISE = {
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow),
    *(torch.add, torch.sub, torch.mul, torch.div, torch.pow),
}


def sizes_of(node_op: str, function: Any, name: str, args: tuple[Any, ...]) -> Tensor | None:
    """Return a tensor with the sizes of this call's result, or None without a rule."""
    first = args[0] if args else None
    if not isinstance(first, Tensor):
        return None
    if node_op == "call_module":
        if type(function) is nn.Linear:
            features = function.out_features
            is_same = str(first.shape[-1]) == str(features)
            return first if is_same else first.new_empty((*first.shape[:-1], features))
        return first if type(function) in _KEEPING_MODULES else None
    if node_op == "call_method":
        if name == "baddbmm" and len(args) >= 3:
            return _batched(*args)
        if name in ("matmul", "bmm") and len(args) == 2:
            return _product(*args)
        keeps = name in _KEEPING_METHODS and first.is_floating_point()
        return first if keeps and not _casts(name, first, args) else None
    if function in _KEEPING_FUNCTIONS:
        return first
    if function in _ELEMENTWISE and len(args) == 2:
        return _elementwise(*args)
    rule = _RULES.get(function)
    return rule(*args) if rule is not None else None


def _elementwise(left: Any, right: Any) -> Tensor | None:
    """Return the left operand if the right one is a number or has the same sizes."""
    if not left.is_floating_point():
        return None
    if isinstance(right, int | float):
        return left
    if isinstance(right, Tensor) and left.dtype == right.dtype and _names(left) == _names(right):
        return left
    return None


def _casts(name: str, first: Tensor, args: tuple[Any, ...]) -> bool:
    """Return True if the result has another dtype: some operations need equal dtypes."""
    if name == "float":
        return first.dtype != torch.float32
    dtypes = [a.dtype if isinstance(a, Tensor) else a for a in args]
    return any(isinstance(dtype, torch.dtype) and dtype != first.dtype for dtype in dtypes)


def _names(tensor: Tensor) -> list[str]:
    return [str(size) for size in tensor.shape]


def _grouped(left: Tensor, right: Tensor, *_: Any) -> Tensor | None:
    """Return the sizes of groups of rows, each multiplied by its own matrix."""
    is_usual = left.dim() == 2 and right.dim() == 3
    return left.new_empty((left.shape[0], right.shape[-1])) if is_usual else None


def _batched(_: Tensor, left: Tensor, right: Tensor, *__: Any) -> Tensor | None:
    """Return the sizes of a sum with a batched matrix product."""
    are_tensors = isinstance(left, Tensor) and isinstance(right, Tensor)
    return left.new_empty((*left.shape[:2], right.shape[2])) if are_tensors else None


def _product(left: Tensor, right: Any) -> Tensor | None:
    """Return the sizes of a batched matrix product, where torch 2.11 would fix sizes."""
    if not isinstance(right, Tensor) or min(left.dim(), right.dim()) < 2:
        return None
    *batch, rows, inner = left.shape
    *other, same, columns = right.shape
    is_plain = list(map(str, (*batch, inner))) == list(map(str, (*other, same)))
    return left.new_empty((*batch, rows, columns)) if is_plain else None


def _padded(x: Tensor, pad: Any, *_: Any) -> Tensor | None:
    """Return padded sizes, where torch would fix sizes; pairs start at the last dimension."""
    if not isinstance(pad, tuple | list):
        return None
    sizes = list(x.shape)
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=False)):
        sizes[-1 - i] = sizes[-1 - i] + before + after
    return x.new_empty(sizes)


def _complex(left: Tensor, right: Any, *_: Any) -> Tensor | None:
    """Return the sizes of complex numbers of two parts, where torch would fix sizes."""
    if not isinstance(right, Tensor) or _names(left) != _names(right):
        return None
    kinds = {torch.float32: torch.complex64, torch.float64: torch.complex128}
    return left.new_empty(left.shape, dtype=kinds[left.dtype]) if left.dtype in kinds else None


_RULES: dict[Any, Callable[..., Tensor | None]] = {
    function: _grouped
    for owner, name in ((torch, "_grouped_mm"), (F, "grouped_mm"))
    if (function := getattr(owner, name, None)) is not None
}
_RULES |= dict.fromkeys((torch.matmul, torch.bmm, operator.matmul), _product)
_RULES |= dict.fromkeys((torch.polar, torch.complex), _complex)
_RULES[F.pad] = _padded
_RULES[torch._C._nn.pad] = _padded
_RULES[torch.baddbmm] = _batched  # torch itself accepts no symbols here
