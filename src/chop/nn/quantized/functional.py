"""Quantised functions: `add_integer`, `matmul_mxint` … for every op and format.

    add_integer(x, y, config={"data_in_width": 8, "data_in_frac_width": 4})

They are created from the op table and the format registry at first use. Tracers record each as one
call, and the configuration is plain data, so that graphs with these calls can be saved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from chop.errors import RegistryError
from chop.ir.ops import OPS, Op
from chop.nn.quantized.call_operands import (
    DATA_OUT,
    describe,
    function_quantizers,
    plain_config,
    quantize_arguments,
    quantize_value,
)
from chop.nn.quantized.integer_calls import compute_integers, is_integer, with_gradient_of
from chop.nn.quantizers import FORMATS, Quantizer
from chop.registry import suggest

QuantizedFunction = Callable[..., Any]
_Frozen = tuple[tuple[str, Any], ...]
_FUNCTIONS: dict[tuple[str, type[Quantizer]], QuantizedFunction] = {}
_QUANTIZERS: dict[tuple[str, str, _Frozen], dict[str, Quantizer]] = {}


def has_function(op: Op) -> bool:
    """Return True if the op has quantised functions."""
    return op.compute is not None and op.compute.function is not None


def quantized_functions() -> tuple[str, ...]:
    """Return the names of ops with quantised functions."""
    return tuple(op.name for op in OPS.values() if has_function(op))


def function_name(op: Op, form: type[Quantizer]) -> str:
    """Return the name of a function: `add`, Integer -> `add_integer`."""
    return f"{op.name}_{form.name}"


def find_function(name: str) -> QuantizedFunction | None:
    """Return the function called `name` (`add_integer`), None if there is none."""
    for form in FORMATS.values():
        op = OPS.get(name.removesuffix(f"_{form.name}"))
        if op is not None and has_function(op) and function_name(op, form) == name:
            return quantized_function(op, form)
    return None


def quantized_function(op: Op, form: type[Quantizer]) -> QuantizedFunction:
    """Return the quantised function of an op that has one."""
    if (op.name, form) not in _FUNCTIONS:
        _FUNCTIONS[op.name, form] = _make(op, form)
    return _FUNCTIONS[op.name, form]


def _make(op: Op, form: type[Quantizer]) -> QuantizedFunction:
    compute = op.compute
    assert compute is not None and compute.function is not None, f"op '{op.name}' has no function"
    kernel, name = compute.function, function_name(op, form)

    def call(*args: Any, config: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        values_in = (*args, *kwargs.values())
        if has_torch_function(values_in):
            return handle_torch_function(call, values_in, *args, config=config, **kwargs)
        quantizers = _quantizers(op.name, form.name, config)
        values = None
        if is_integer(compute, config):
            values = _in_integers(op, quantizers, args, kwargs)
            if not torch.is_grad_enabled():
                return values
        inputs, options = quantize_arguments(compute.operands, quantizers, args, kwargs)
        result = quantize_value(kernel(*inputs, **options), quantizers[DATA_OUT])
        return result if values is None else with_gradient_of(values, result)

    call.__name__ = call.__qualname__ = name
    call.__module__ = __name__
    call.__doc__ = describe(op.name, form, (o.role for o in compute.operands))
    kinds, names = inspect.Parameter, compute.arguments
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(kinds(argument, kinds.POSITIONAL_OR_KEYWORD) for argument in names),
            kinds("config", kinds.KEYWORD_ONLY, default=None),
            kinds("options", kinds.VAR_KEYWORD),
        ]
    )
    call.op, call.format = op, form  # type: ignore[attr-defined]
    call.mase_leaf = True  # type: ignore[attr-defined]
    return call


def _in_integers(
    op: Op, quantizers: Mapping[str, Quantizer], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor:
    """Compute the call as hardware does; such an op has one operand, its first argument."""
    compute = op.compute
    assert compute is not None and compute.function is not None, f"op '{op.name}' has no function"
    kernel = compute.function
    by_name = dict(zip((*compute.arguments, "eps"), args, strict=False)) | dict(kwargs)
    rest = {k: v for k, v in kwargs.items() if k != compute.arguments[0]}

    def function(x: Tensor) -> Any:
        return kernel(x, *args[1:], **rest)

    def setting(name: str, default: Any) -> Any:
        return by_name.get(name, default)

    operand, key = by_name[compute.arguments[0]], (op.name, repr(args[1:]), repr(rest))
    return compute_integers(compute, quantizers, operand, setting, function, key)


def is_quantized_function(target: Any) -> bool:
    """Return True if `target` is a quantised function."""
    return (
        callable(target)
        and getattr(target, "__module__", None) == __name__
        and hasattr(target, "op")
    )


def call_quantizers(function: Any, config: Any) -> Mapping[str, Quantizer]:
    """Return the format of each operand of a call of a quantised function."""
    return _quantizers(function.op.name, function.format.name, config)


def _quantizers(op: str, form: str, config: Mapping[str, Any] | None) -> dict[str, Quantizer]:
    items = (config or {}).items()
    frozen = tuple((k, tuple(v) if isinstance(v, list | tuple) else v) for k, v in items)
    _read(op, form, frozen)
    return _QUANTIZERS[op, form, frozen]


def _read(op: str, form: str, config: _Frozen) -> bool:
    """Store the formats of a call in `_QUANTIZERS`; each configuration is parsed once."""
    key = (op, form, config)
    if key not in _QUANTIZERS:
        _QUANTIZERS[key] = parse_function_config(OPS[op], FORMATS[form], dict(config))
    return True


_read._dynamo_marked_constant = True  # type: ignore[attr-defined]  # run by compilers, not traced


def parse_function_config(
    op: Op, form: type[Quantizer], config: Mapping[str, Any], where: str | None = None
) -> dict[str, Quantizer]:
    """Return the format of each operand of a quantised function; errors name `where`."""
    path = function_name(op, form) if where is None else where
    assert op.compute is not None, f"op '{op.name}' cannot be quantised"
    plain = plain_config(config, form, path)
    return function_quantizers(op.compute, plain, path)


class _FunctionsByName(Mapping[str, QuantizedFunction]):
    """Functions by the names of op and format, those registered later too."""

    def __getitem__(self, name: str) -> QuantizedFunction:
        function = find_function(name)
        if function is None:
            raise RegistryError(f"Unknown quantised function '{name}'. {suggest(name, self)}")
        return function

    def __iter__(self) -> Iterator[str]:
        ops = [OPS[name] for name in quantized_functions()]
        return (function_name(op, form) for op in ops for form in FORMATS.values())

    def __len__(self) -> int:
        return sum(1 for _ in self)


quantized_func_map: Mapping[str, QuantizedFunction] = _FunctionsByName()
"""`"add_integer"` -> the function."""


def __getattr__(name: str) -> Any:
    function = find_function(name)
    if function is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return function


def __dir__() -> list[str]:
    return [*globals(), *quantized_func_map]
