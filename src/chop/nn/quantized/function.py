"""Functions that compute with quantised operands, one for each op and format.

    add_integer(x, y, config={"data_in_width": 8, "data_in_frac_width": 4})

They are made from the op table and the registry of formats when they are first asked for, are seen
by tracers as one call, and take their configuration as plain data, so that a graph that calls them
can be written down.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from chop.ir.ops import OPS, Compute, Op
from chop.nn.quantized.integer import compute_integers, is_integer, with_gradient_of
from chop.nn.quantized.operands import (
    DATA_OUT,
    function_quantizers,
    plain_config,
    quantize_arguments,
    quantize_value,
)
from chop.nn.quantizers import FORMATS, Quantizer

PLACE = "chop.nn.quantized.functional"
"""Where the functions live."""

QuantizedFunction = Callable[..., Any]
_Frozen = tuple[tuple[str, Any], ...]
_MADE: dict[tuple[str, type[Quantizer]], QuantizedFunction] = {}
_KNOWN: dict[tuple[str, str, _Frozen], dict[str, Quantizer]] = {}


def has_function(op: Op) -> bool:
    """Whether the op has quantised functions."""
    return op.compute is not None and op.compute.function is not None


def quantized_functions() -> tuple[str, ...]:
    """The ops that have quantised functions."""
    return tuple(op.name for op in OPS.values() if has_function(op))


def function_name(op: Op, form: type[Quantizer]) -> str:
    """`add`, Integer -> `add_integer`."""
    return f"{op.name}_{form.name}"


def find_function(name: str) -> QuantizedFunction | None:
    """The function called `name` (`add_integer`); None where there is none."""
    for form in FORMATS.values():
        op = OPS.get(name.removesuffix(f"_{form.name}"))
        if op is not None and has_function(op) and function_name(op, form) == name:
            return quantized_function(op, form)
    return None


def quantized_function(op: Op, form: type[Quantizer]) -> QuantizedFunction:
    """The quantised function of an op that has one."""
    if (op.name, form) not in _MADE:
        _MADE[op.name, form] = _make(op, form)
    return _MADE[op.name, form]


def _make(op: Op, form: type[Quantizer]) -> QuantizedFunction:
    compute = op.compute
    assert compute is not None and compute.function is not None, f"op '{op.name}' has no function"
    kernel, name = compute.function, function_name(op, form)

    def call(*args: Any, config: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if has_torch_function(given):
            return handle_torch_function(call, given, *args, config=config, **kwargs)
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
    call.__module__ = PLACE
    call.__doc__ = _describe(op, compute, form)
    call.__signature__ = _signature(compute)  # type: ignore[attr-defined]
    call.op, call.format = op, form  # type: ignore[attr-defined]
    call.mase_leaf = True  # type: ignore[attr-defined]
    return call


def _in_integers(
    op: Op, quantizers: Mapping[str, Quantizer], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor:
    """The call as hardware computes it; such an op has one operand, its first argument."""
    compute = op.compute
    assert compute is not None and compute.function is not None, f"op '{op.name}' has no function"
    kernel = compute.function
    given = dict(zip((*compute.arguments, "eps"), args, strict=False)) | dict(kwargs)
    rest = {k: v for k, v in kwargs.items() if k != compute.arguments[0]}

    def function(x: Tensor) -> Any:
        return kernel(x, *args[1:], **rest)

    def setting(name: str, default: Any) -> Any:
        return given.get(name, default)

    operand, key = given[compute.arguments[0]], (op.name, repr(args[1:]), repr(rest))
    return compute_integers(compute, quantizers, operand, setting, function, key)


def is_quantized_function(target: Any) -> bool:
    """Whether `target` is one of the functions made here."""
    return callable(target) and getattr(target, "__module__", None) == PLACE


def call_quantizers(function: Any, config: Any) -> Mapping[str, Quantizer]:
    """The format of each operand of a call of a quantised function."""
    return _quantizers(function.op.name, function.format.name, config)


def _quantizers(op: str, form: str, config: Mapping[str, Any] | None) -> dict[str, Quantizer]:
    key = (op, form, _frozen(config))
    _read(*key)
    return _KNOWN[key]


def _frozen(config: Mapping[str, Any] | None) -> _Frozen:
    items = {} if config is None else config
    return tuple((k, tuple(v) if isinstance(v, list | tuple) else v) for k, v in items.items())


def _read(op: str, form: str, config: _Frozen) -> bool:
    """Note the formats of a call in `_KNOWN`; each configuration is read once."""
    key = (op, form, config)
    if key not in _KNOWN:
        _KNOWN[key] = parse_function_config(OPS[op], FORMATS[form], dict(config))
    return True


_read._dynamo_marked_constant = True  # type: ignore[attr-defined]  # run by compilers, not traced


def parse_function_config(
    op: Op, form: type[Quantizer], config: Mapping[str, Any], where: str | None = None
) -> dict[str, Quantizer]:
    """The format of each operand of a quantised function; errors carry the path `where`."""
    path = function_name(op, form) if where is None else where
    assert op.compute is not None, f"op '{op.name}' cannot be quantised"
    plain = plain_config(config, form, path)
    return function_quantizers(op.compute, plain, path)


def _signature(compute: Compute) -> inspect.Signature:
    """The arguments of the op's function, and `config`."""
    own = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in compute.arguments]
    options = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None)
    return inspect.Signature([*own, config, options])


def _describe(op: Op, compute: Compute, form: type[Quantizer]) -> str:
    roles = ", ".join(f"`{o.role}`" for o in compute.operands)
    summary = (form.__doc__ or "").strip().splitlines()[0]
    return (
        f"`{op.name}` in the format `{form.name}`: {summary}\n\n"
        f"Takes the arguments of torch's `{op.name}` and `config`, whose keys are an operand "
        f"({roles}; `{DATA_OUT}` for the result) joined to a setting of the format."
    )
