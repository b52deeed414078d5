"""Calls that compute in integers as hardware does: `arithmetic = "integer"` in their config.

The gradient is that of the op in floating point between its formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.ops import Compute, node_module
from chop.ir.ops.integer_kernels import IntegerCall, undefined
from chop.nn.quantizers import Integer, Quantizer
from chop.nn.quantizers.arithmetic.fixed_codes import LARGEST_WIDTH
from chop.nn.quantizers.operands import ARITHMETIC, ARITHMETICS

DATA_OUT = "data_out"
"""Role of a result; it stays unchanged unless the config has settings for it."""


def is_integer(compute: Compute, config: Mapping[str, Any] | None) -> bool:
    """Return True if the op has integer arithmetic and `config` selects it."""
    return compute.integer is not None and (config or {}).get(ARITHMETIC) == "integer"


def check_integers(
    compute: Compute, config: Mapping[str, Any], quantizers: Mapping[str, Quantizer], where: str
) -> None:
    """Raise if a format has no integer arithmetic; `where` is the path of the config."""
    if all(q.is_bypass for q in quantizers.values()) or not is_integer(compute, config):
        return
    if compute.integer is undefined:
        raise ConfigError(
            f"{where}.{ARITHMETIC}: this op has no integer arithmetic. Allowed: 'float', or the "
            f"products and the softmax that it consists of, one by one."
        )
    for role, form in fixed_points(quantizers).items():
        if form is None:
            raise ConfigError(
                f"{where}: arithmetic = 'integer' needs a format of {role}. "
                f"Set {role}_width and {role}_frac_width."
            )
        if form.rounding == "stochastic":
            raise ConfigError(f"{where}.{role}_rounding: 'stochastic' has no integer arithmetic.")
        if role != DATA_OUT and form.width > LARGEST_WIDTH:
            raise ConfigError(
                f"{where}.{role}_width: at most {LARGEST_WIDTH} with arithmetic = 'integer', got "
                f"{form.width}."
            )


def fixed_points(quantizers: Mapping[str, Quantizer]) -> dict[str, Integer | None]:
    """Return the formats that are fixed point; None stands for any other."""
    return {role: form.fixed_point for role, form in quantizers.items()}


def compute_integers(
    compute: Compute,
    quantizers: Mapping[str, Quantizer],
    operand: Tensor,
    setting: Callable[[str, Any], Any],
    function: Callable[[Tensor], Tensor],
    key: Any,
) -> Tensor:
    """Return the values of the op, computed in integers."""
    assert compute.integer is not None, "asked for an op without integer arithmetic"
    formats = {r: form for r, form in fixed_points(quantizers).items() if form is not None}
    with torch.no_grad():
        return compute.integer(IntegerCall(operand, formats, setting, function, key))


def with_gradient_of(values: Tensor, result: Tensor) -> Tensor:
    """Return `values` with the gradient of `result`."""
    replaced: Tensor = _InsteadOf.apply(result, values)  # type: ignore[no-untyped-call]
    return replaced


class _InsteadOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def node_arithmetic(node: fx.Node) -> str:
    """Return the arithmetic of a node, from the config of its layer or call."""
    config = node.kwargs.get("config") if node.op == "call_function" else None
    if node.op == "call_module":
        config = getattr(node_module(node), "config", None)
    arithmetic = config.get(ARITHMETIC) if isinstance(config, Mapping) else None
    return str(arithmetic or ARITHMETICS[0])
