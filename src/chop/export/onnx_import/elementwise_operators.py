"""Elementwise operators."""

from __future__ import annotations

import functools
import math
import operator as python
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.export.onnx_import.call import Call, operator, register_operators
from chop.export.onnx_import.host_values import as_tensor, elementwise, is_host
from chop.export.onnx_import.onnx_file import TYPES

_SAME_NAME = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf"),
    *("Exp", "Floor", "IsNaN", "Log", "Reciprocal", "Round", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Tan", "Tanh"),
)
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch, name.lower()) for name in _SAME_NAME},
    "BitwiseNot": torch.bitwise_not,
    "HardSwish": F.hardswish,
    "Mish": F.mish,
    "Not": torch.logical_not,
    "Relu": F.relu,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
}
"""Functions of one tensor."""
HOST_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": abs,
    "Ceil": lambda v: -(-v // 1),
    "Floor": lambda v: v // 1,
    "Not": python.not_,
    "Reciprocal": lambda v: 1 / v,
    "Sqrt": lambda v: v**0.5,
}
"""Functions of one number: results of sizes stay numbers, and the graph dynamic in them."""


@operator(*UNARY)
def _unary(call: Call) -> Any:
    name = call.node.operator
    if call.is_host(0) and name in HOST_UNARY:
        return elementwise(HOST_UNARY[name], call.numbers_or_one(0))
    return UNARY[name](call.tensor(0))


def _divide(a: Any, b: Any) -> Any:
    """Divide as ONNX does: integers are truncated towards zero."""
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    if isinstance(a, int) and isinstance(b, int):
        return a // b if (a >= 0) == (b > 0) or a % b == 0 else -(-a // b)
    whole = not any(isinstance(v, Tensor) and v.is_floating_point() for v in (a, b))
    return torch.div(a, b, rounding_mode="trunc") if whole else a / b


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": python.add,
    "Sub": python.sub,
    "Mul": python.mul,
    "Div": _divide,
    "Equal": python.eq,
    "Greater": python.gt,
    "GreaterOrEqual": python.ge,
    "Less": python.lt,
    "LessOrEqual": python.le,
}
LOGICAL: dict[str, tuple[Callable[..., Tensor], Callable[[Any, Any], Any]]] = {
    "And": (torch.logical_and, lambda a, b: bool(a and b)),
    "Or": (torch.logical_or, lambda a, b: bool(a or b)),
    "Xor": (torch.logical_xor, python.xor),
    "BitwiseAnd": (torch.bitwise_and, python.and_),
    "BitwiseOr": (torch.bitwise_or, python.or_),
    "BitwiseXor": (torch.bitwise_xor, python.xor),
}


def _second(call: Call) -> Any:
    """Return the second operand; opset 6 has an axis where its dimensions start."""
    value, axis = call.operand(1), call.attribute("axis")
    if call.version >= 7 or axis is None or not isinstance(value, Tensor):
        return value
    x = call.tensor(0)
    return value.reshape([*value.shape, *[1] * (x.dim() - axis % x.dim() - value.dim())])


@operator(*BINARY)
def _binary(call: Call) -> Any:
    function, hosts = BINARY[call.node.operator], call.hosts()
    if hosts is not None:
        return elementwise(function, *hosts)
    return function(call.operand(0), _second(call))


@operator(*LOGICAL)
def _logical(call: Call) -> Any:
    function, of_numbers = LOGICAL[call.node.operator]
    hosts = call.hosts()
    if hosts is not None:
        return elementwise(of_numbers, *hosts)
    return function(call.tensor(0), call.tensor(1))


@operator("Neg")
def _neg(call: Call) -> Any:
    return elementwise(python.neg, call.numbers_or_one(0)) if call.is_host(0) else -call.tensor(0)


@operator("Pow")
def _pow(call: Call) -> Any:
    hosts = call.hosts()
    if hosts is not None:
        return elementwise(pow, *hosts)
    base, exponent = call.operand(0), _second(call)
    power = torch.pow(base, exponent)
    is_same = not isinstance(base, Tensor) or power.dtype == base.dtype
    return power if is_same else power.to(base.dtype)


@operator("Mod")
def _mod(call: Call) -> Any:
    hosts = call.hosts()
    is_c = bool(call.attribute("fmod", 0))
    if hosts is not None:
        return elementwise(math.fmod if is_c else python.mod, *hosts)
    function = torch.fmod if is_c else torch.remainder
    return function(call.operand(0), call.operand(1))


@operator("Max", "Min")
def _extreme(call: Call) -> Any:
    is_max = call.node.operator == "Max"
    hosts = call.hosts()
    if hosts is not None:
        return functools.reduce(lambda a, b: elementwise(max if is_max else min, a, b), hosts)
    operands = [call.operand(i) for i in range(call.count)]
    tensors = [v for v in operands if isinstance(v, Tensor)]
    numbers = [v for v in operands if not isinstance(v, Tensor)]
    if not tensors:
        return as_tensor((max if is_max else min)(numbers))
    result = functools.reduce(torch.maximum if is_max else torch.minimum, tensors)
    for number in numbers:
        result = torch.clamp(result, min=number) if is_max else torch.clamp(result, max=number)
    return result


@operator("Sum", "Mean")
def _sum(call: Call) -> Any:
    total = functools.reduce(python.add, [call.tensor(i) for i in range(call.count)])
    return total / call.count if call.node.operator == "Mean" else total


@operator("Clip")
def _clip(call: Call) -> Any:
    low, high = (
        call.operand(i) if call.given(i) else call.attribute(name)
        for i, name in ((1, "min"), (2, "max"))
    )
    if call.is_host(0) and not any(isinstance(b, Tensor) for b in (low, high)):
        numbers = call.numbers_or_one(0)
        numbers = numbers if low is None else elementwise(max, numbers, low)
        return numbers if high is None else elementwise(min, numbers, high)
    result = call.tensor(0)  # torch.clamp takes two tensors or two numbers: one bound at a time
    result = result if low is None else torch.clamp(result, min=low)
    return result if high is None else torch.clamp(result, max=high)


@operator("Where")
def _where(call: Call) -> Any:
    hosts = call.hosts()
    if hosts is not None:
        return elementwise(lambda c, a, b: a if c else b, *hosts)
    kinds = [call.dtype_of(i) for i in (1, 2)]
    result = torch.where(call.tensor(0), call.operand(1), call.operand(2))
    dtype = next((k for k in kinds if k is not None), result.dtype)
    return result if result.dtype == dtype else result.to(dtype)


def _cast_number(value: Any, kind: torch.dtype) -> Any:
    if kind == torch.bool:
        return bool(value)
    if kind.is_floating_point:
        return value * 1.0
    if type(value) is float:
        return int(value)
    return value // 1 if isinstance(value, float) else value


LAST_E4M3 = 464.0
"""Largest number that rounds to 448, the largest of float8 e4m3; the next step would be 480."""


def saturated(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return floats in a type of 8 bits; beyond its range, its largest number."""
    most = torch.finfo(kind).max
    return x.float().clamp(-most, most).to(kind)


def unsaturated(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return floats in a type of 8 bits; beyond its range, infinity, or NaN if it has none."""
    if kind == torch.float8_e4m3fn:  # torch saturates
        x = torch.where(x.abs() > LAST_E4M3, torch.nan, x)
    return x.to(kind)


def cast(call: Call, kind: torch.dtype) -> Any:
    """Return the first input in another type."""
    if call.is_host(0) or (call.count > 1 and call.is_host(1) and call.host(0) is not None):
        return elementwise(lambda v: _cast_number(v, kind), call.numbers_or_one(0))
    value = call.tensor(0)
    if kind.itemsize == 1 and kind.is_floating_point:
        return (saturated if call.attribute("saturate", 1) else unsaturated)(value, kind)
    return value if value.dtype == kind and not call.scope.is_folding else value.to(kind)


@operator("Cast")
def _cast(call: Call) -> Any:
    return cast(call, TYPES[call.scope.kind_of(call.attribute("to"))])


@operator("CastLike")
def _cast_like(call: Call) -> Any:
    like = call.value(1)
    return cast(call, as_tensor(like).dtype if is_host(like) else like.dtype)


@operator("Identity", "Dropout")
def _identity(call: Call) -> Any:
    if call.node.operator == "Dropout" and call.given(2) and call.host(2) is not False:
        raise ValueError("training mode. Allowed: inference")
    if call.node.operator == "Dropout" and len(call.node.outputs) > 1:
        return call.value(0), torch.ones_like(call.tensor(0), dtype=torch.bool)
    return call.value(0)


@operator("IsInf")
def _is_inf(call: Call) -> Any:
    x = call.tensor(0)
    signs = (call.attribute("detect_negative", 1), call.attribute("detect_positive", 1))
    checks = {(1, 1): torch.isinf, (1, 0): torch.isneginf, (0, 1): torch.isposinf}
    return checks[signs](x) if signs in checks else torch.zeros_like(x, dtype=torch.bool)


register_operators(
    {
        "Celu": lambda call: F.celu(call.tensor(0), call.attribute("alpha", 1.0)),
        "Elu": lambda call: F.elu(call.tensor(0), call.attribute("alpha", 1.0)),
        "Gelu": lambda call: F.gelu(
            call.tensor(0), approximate=call.attribute("approximate", "none")
        ),
        "LeakyRelu": lambda call: F.leaky_relu(call.tensor(0), call.attribute("alpha", 0.01)),
        "ThresholdedRelu": lambda call: F.threshold(
            call.tensor(0), call.attribute("alpha", 1.0), 0.0
        ),
    }
)


@operator("PRelu")
def _prelu(call: Call) -> Any:
    x, slope = call.tensor(0), call.tensor(1)
    if call.version < 7 and slope.numel() > 1:  # one per channel
        slope = slope.reshape([-1, *[1] * (x.dim() - 2)])
    return torch.where(x < 0, x * slope, x)


@operator("Selu")
def _selu(call: Call) -> Any:
    x = call.tensor(0)
    alpha = call.attribute("alpha", 1.67326319217681884765625)
    gamma = call.attribute("gamma", 1.05070102214813232421875)
    if abs(alpha - 1.6732632) < 1e-6 and abs(gamma - 1.050701) < 1e-6:
        return F.selu(x)
    return gamma * torch.where(x > 0, x, alpha * (torch.exp(x) - 1))


@operator("HardSigmoid")
def _hard_sigmoid(call: Call) -> Any:
    alpha, beta = call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:
        return F.hardsigmoid(call.tensor(0))
    return torch.clamp(call.tensor(0) * alpha + beta, 0, 1)


@operator("Shrink")
def _shrink(call: Call) -> Any:
    x, bias, lambd = call.tensor(0), call.attribute("bias", 0.0), call.attribute("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


@operator("Swish")
def _swish(call: Call) -> Any:
    alpha = call.attribute("alpha", 1.0)
    x = call.tensor(0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


@operator("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: Call) -> Any:
    name, x = call.node.operator, call.tensor(0)
    axis = call.attribute("axis", -1 if call.version >= 13 else 1)
    if (
        call.version < 13 and axis % x.dim() != x.dim() - 1
    ):  # older opsets flatten the other dimensions
        return _normalised(name, x.flatten(axis), -1).reshape(x.shape)
    return _normalised(name, x, axis)


def _normalised(name: str, x: Tensor, axis: int) -> Tensor:
    if name == "Hardmax":
        best = torch.argmax(x, axis, keepdim=True)
        return torch.zeros_like(x).scatter(axis, best, 1.0)
    return (F.softmax if name == "Softmax" else F.log_softmax)(x, dim=axis)
