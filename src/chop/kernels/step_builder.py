"""Translation of a captured decode step, with one new token per row, to a native program."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.ops.table import find_op
from chop.kernels.step_code import StepProgram, UnsupportedError
from chop.kernels.step_rules import (
    COPYING,
    MODULE_RULES,
    RULES,
    STAND_INS,
    VIEWS,
    Cached,
    Ones,
    Past,
    StepBuilder,
)

TOKENS = ("input_ids", "decoder_input_ids")
MASKS = ("attention_mask", "decoder_attention_mask")
PAST, POSITIONS = "past_key_values", "position_ids"
PLAIN_PACKAGES = ("torch", "_operator", "builtins", "math")
"""Packages whose functions have the meaning of their op; quantised functions have another one."""
PLAIN_MODULES = ("chop.ir.kv_cache", "chop.kernels.attention")


@dataclass(frozen=True)
class BuiltStep:
    """Program of a step.

    `outputs` is the graph's output with tensors and stand-ins, `appended` has the new key and value
    of each layer, and `modules` are those whose hooks and mode matter.
    """

    program: StepProgram
    token: Tensor
    position: Tensor
    outputs: Any
    appended: tuple[tuple[Tensor, Tensor], ...]
    modules: tuple[nn.Module, ...]


def build_step(model: fx.GraphModule, rows: int = 1) -> BuiltStep:
    """Return the native program of a step of `model`; raise UnsupportedError if it has none."""
    builder, values = StepBuilder(rows), dict[fx.Node, Any]()
    modules: list[nn.Module] = [model]
    for node in model.graph.nodes:
        try:
            values[node] = _value(builder, model, node, values, modules)
        except UnsupportedError as error:
            raise UnsupportedError(f"node '{node.name}': {error}") from None
    outputs = values[next(iter(reversed(model.graph.nodes)))]
    if not isinstance(outputs, dict) or set(builder.appended) != set(range(len(builder.appended))):
        raise UnsupportedError("an output or a cache of another form")
    appended = tuple(builder.appended[layer] for layer in range(len(builder.appended)))
    own = [builder.token, builder.position, *_tensors((outputs, appended))]
    builder.program.share_memory(own)
    parts = (builder.program, builder.token, builder.position, outputs, appended)
    return BuiltStep(*parts, tuple(modules))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested values."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _value(
    builder: StepBuilder,
    model: fx.GraphModule,
    node: fx.Node,
    values: Mapping[fx.Node, Any],
    modules: list[nn.Module],
) -> Any:
    if node.op == "placeholder":
        return _input(builder, node)
    if node.op == "get_attr":
        return _attribute(builder, operator.attrgetter(str(node.target))(model))
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    if node.op == "output":
        return args[0]
    if node.op == "call_module":
        modules.append(module := model.get_submodule(str(node.target)))
        return _module_value(builder, module, args, kwargs)
    if not any(map(_is_live, (*args, *kwargs.values()))):
        return _call(node, args, kwargs)
    return _op_value(builder, node, args, kwargs)


def _input(builder: StepBuilder, node: fx.Node) -> Any:
    name = str(node.target)
    if name in TOKENS:
        return builder.token
    if name in MASKS:
        return Ones()
    if name == PAST:
        return Past()
    if name == POSITIONS:
        return builder.position
    if not node.args:
        raise UnsupportedError(f"an input '{name}'")
    return node.args[0]


def _attribute(builder: StepBuilder, value: Any) -> Any:
    """Return a parameter, buffer or constant of the model."""
    if isinstance(value, Tensor):
        if value.dtype != torch.float32 or not value.is_cpu:
            raise UnsupportedError(f"a parameter of {value.dtype} on {value.device}")
        builder.program.watch(value)
        return value.detach()
    return value


def _module_value(builder: StepBuilder, module: nn.Module, args: Any, kwargs: Any) -> Any:
    if not any(map(_is_live, (*args, *kwargs.values()))):
        return module(*args, **kwargs)
    rule = MODULE_RULES.get(type(module))
    if rule is None or kwargs:
        raise UnsupportedError(f"no native code for the module {type(module).__name__}")
    return rule(builder, module, *args)


def _op_value(builder: StepBuilder, node: fx.Node, args: Any, kwargs: Any) -> Any:
    name = _plain_op(node)
    if name in VIEWS:
        return _view(builder, name, lambda *a: _call(node, a, kwargs), args)
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedError(f"no native code for '{name}'")
    try:
        bound = _signature(rule).bind(builder, *args, **kwargs)
    except TypeError as error:
        raise UnsupportedError(f"'{name}' with other arguments: {error}") from error
    return rule(*bound.args, **bound.kwargs)


@functools.cache
def _signature(rule: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(rule)


def _plain_op(node: fx.Node) -> str:
    """Return the name of an op that computes exactly that op, and changes no operand."""
    op, target = find_op(node), node.target
    module = "" if isinstance(target, str) else (getattr(target, "__module__", "") or "")
    is_plain = node.op == "call_method" or module.split(".")[0] in PLAIN_PACKAGES
    spelling = target if isinstance(target, str) else getattr(target, "__name__", "")
    if op is None or not (is_plain or module in PLAIN_MODULES) or spelling.endswith("_"):
        raise UnsupportedError(f"no native code for '{spelling}'")
    return str(op.name)


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    return target(*args, **kwargs)


def _is_live(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_live, value))
    return isinstance(value, (Tensor, *STAND_INS))


# -- views -----------------------------------------------------------------------------------------


def _view(builder: StepBuilder, name: str, run: Callable[..., Any], args: Any) -> Any:
    x = args[0]
    if isinstance(x, Cached):
        return _cached_view(x, name, args[1:])
    if isinstance(x, (tuple, list, *STAND_INS)):
        if name not in ("getitem", "to", "contiguous"):
            raise UnsupportedError(f"'{name}' of a {type(x).__name__}")
        return run(*args) if name == "getitem" else x
    result = run(*args)
    if _is_alias(result, x):
        return result
    if name not in COPYING:
        raise UnsupportedError(f"'{name}' that computes")
    return run(builder.program.elementwise("copy", x), *args[1:])


def _is_alias(result: Any, x: Tensor) -> bool:
    if isinstance(result, tuple | list) and not isinstance(result, torch.Size):
        return all(_is_alias(part, x) for part in result)
    if not isinstance(result, Tensor):
        return True
    same = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return same and result.dtype == x.dtype


def _cached_view(x: Cached, name: str, args: Any) -> Any:
    """Return a view of keys or values; only those that repeat heads or transpose exist."""
    whole = slice(None)
    if name == "getattr" and args == ("shape",):
        return x.shape
    if name == "size":
        return x.shape[args[0]] if args else x.shape
    if name in ("to", "contiguous"):
        return x
    if name == "transpose" and {a % 4 for a in args} == {2, 3} and not x.is_split:
        return replace(x, is_transposed=not x.is_transposed)
    if name == "getitem" and args[0] == (whole, whole, None, whole, whole) and not x.is_split:
        return replace(x, is_split=True)
    sizes = tuple(args[0]) if len(args) == 1 and not isinstance(args[0], int) else tuple(args)
    if name == "expand" and x.is_split and x.repeats == 1 and len(sizes) == 5:
        wider = replace(x, repeats=sizes[2])
        if sizes == wider.shape:
            return wider
    if name in ("reshape", "view") and x.is_split:
        merged = replace(x, is_split=False)
        if sizes == merged.shape:
            return merged
    raise UnsupportedError(f"'{name}' of keys or values")
