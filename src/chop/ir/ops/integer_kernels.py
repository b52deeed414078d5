"""Integer kernels of ops that are not sums of products.

With `arithmetic = "integer"` in its config such an op computes as the hardware does
(`chop.nn.quantizers.arithmetic`). Sums and products in the format `integer` are exact in floating
point too and need no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic import function, norm
from chop.nn.quantizers.arithmetic import integer_softmax as rows


@dataclass(frozen=True)
class IntegerCall:
    """Call of an op: its unquantised operand, its quantised parameters, the format of each role.

    `setting(name, default)` is an argument of the function or an attribute of the layer;
    `function` is the op in floating point, as a function of its operand.
    """

    operand: Tensor
    formats: dict[str, Integer]
    setting: Callable[[str, Any], Any]
    function: Callable[[Tensor], Tensor]
    key: Hashable
    """Equal for calls of the same function with the same settings."""


IntegerKernel = Callable[[IntegerCall], Tensor]


def softmax(call: IntegerCall) -> Tensor:
    """Compute softmax over one dimension."""
    dim = call.setting("dim", None)
    if not isinstance(dim, int):
        raise ConfigError(f"softmax: dim must be given with arithmetic = 'integer', got {dim}.")
    dtype = call.setting("dtype", None)
    x = call.operand.to(dtype) if isinstance(dtype, torch.dtype) else call.operand
    return rows.softmax(x, dim, call.formats["data_in"], call.formats["data_out"])


def layer_norm(call: IntegerCall) -> Tensor:
    """Compute layer normalisation."""
    shape, weight, bias = (call.setting(n, None) for n in ("normalized_shape", "weight", "bias"))
    eps = call.setting("eps", 1e-5)
    return norm.layer_norm(call.operand, shape, weight, bias, eps, call.formats)


def rms_norm(call: IntegerCall) -> Tensor:
    """Compute root-mean-square normalisation."""
    shape, weight, eps = (call.setting(n, None) for n in ("normalized_shape", "weight", "eps"))
    return norm.rms_norm(call.operand, shape, weight, eps, call.formats)


def undefined(call: IntegerCall) -> Tensor:
    """Raise, for ops that are not sums of products and have no integer kernel yet."""
    raise ConfigError(f"{call.key}: has no integer arithmetic.")


def by_table(call: IntegerCall) -> Tensor:
    """Compute a function of one element by a table."""
    numbers = (call.formats["data_in"], call.formats["data_out"])
    return function.function_by_table(call.operand, call.function, *numbers, call.key)
