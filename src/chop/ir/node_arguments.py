"""Names of a node's arguments, and the metadata of its operands and results.

Tensor operands are `data_in_0`, `data_in_1` … in the order of the call. Other arguments have their
names in torch's signature. Parameters (`weight`, `bias` …) come last. Operands are described from
the results of the nodes that compute them, so that a graph can be relinked without a run.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.operator_schemas import get_signature_for_torch_op

from chop.ir.meta import MaseMetadata, ValueMeta
from chop.ir.ops import Op, node_module

OWN_NAMES: dict[Any, tuple[str, ...]] = {
    operator.getitem: ("input", "index"),
    operator.setitem: ("input", "index", "source"),
    getattr: ("object", "name", "default"),
    torch.einsum: ("equation", "operands"),
}
"""Argument names of functions whose signatures have poor ones."""

PLAIN_TYPES = {bool: "bool", int: "integer", float: "float", str: "string", type(None): "none"}
_LITERALS = (*PLAIN_TYPES, torch.dtype, torch.device, torch.layout, torch.memory_format, slice)
_KINDS: dict[str, Any] = {
    "node": fx.Node,
    "ScalarType": torch.dtype,
    "Device": torch.device,
    "number": (int, float),
}
_NOT_A_NUMBER = ("Tensor", "ScalarType", "Device", "Layout", "Dimname", "str", "MemoryFormat")


def describe_tensor(tensor: Tensor, *, value: Any = None) -> ValueMeta:
    """Return shape, dtype and number format of `tensor`."""
    return ValueMeta(
        shape=list(tensor.shape),
        torch_dtype=tensor.dtype,
        value=value,
        device=tensor.device,
        stride=list(tensor.stride()) if tensor.layout is torch.strided else None,
    )


def is_plain(value: Any) -> bool:
    """Return True if `value` is a literal or a container of literals."""
    if isinstance(value, tuple | list):
        return all(is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(is_plain(v) for v in value.values())
    return isinstance(value, _LITERALS) or value is Ellipsis


def describe_value(value: Any) -> ValueMeta:
    """Describe a configuration value or a result that is not a tensor."""
    kind = PLAIN_TYPES.get(type(value), type(value).__name__)
    return ValueMeta(type=kind, value=value if is_plain(value) else None)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, through tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)


def holds_tensor(value: Any) -> bool:
    """Return True if there is a tensor in `value`."""
    return next(tensors_in(value), None) is not None


def describe_result(
    value: Any, keep: Callable[[Tensor], Any] = lambda tensor: None
) -> dict[str, ValueMeta]:
    """Return `data_out_0` … for the tensors in `value`, or for `value` if there are none."""
    results = [describe_tensor(t, value=keep(t)) for t in tensors_in(value)]
    return {f"data_out_{i}": each for i, each in enumerate(results or [describe_value(value)])}


def describe_arguments(
    node: fx.Node, op: Op | None, keep: Callable[[Tensor], Any] = lambda tensor: None
) -> dict[str, ValueMeta]:
    """Return the `args` of `node`, from the annotated results of its inputs."""
    roles = op.parameters if op else ()
    operands: dict[str, ValueMeta] = {}
    config: dict[str, ValueMeta] = {}
    parameters: dict[str, ValueMeta] = {}
    for name, argument in _in_order(node, op):
        tensors = _tensor_results(argument) if name in roles else []
        if tensors:
            parameters[name] = tensors[0]
            continue
        value = _take_tensors(argument, operands)
        if not _is_only_operands(argument):
            source = argument if isinstance(argument, fx.Node) else None
            config[name] = replace(describe_value(value), source=source)
    if node.op == "call_module":
        parameters |= describe_parameters(node_module(node), roles, keep)
    return operands | config | parameters


def operand_nodes(node: fx.Node, op: Op | None) -> dict[str, fx.Node]:
    """Return the nodes that compute the tensor operands of a call, by name (`data_in_0` …)."""
    roles = op.parameters if op else ()
    operands: dict[str, ValueMeta] = {}
    for name, argument in _in_order(node, op):
        if not (name in roles and isinstance(argument, fx.Node)):
            _take_tensors(argument, operands)
    return {name: v.source for name, v in operands.items() if v.source is not None}


def _in_order(node: fx.Node, op: Op | None) -> list[tuple[str, Any]]:
    """Return names and arguments of a call, in the order of the op's row."""
    named = named_arguments(node)
    if op is None or op.compute is None or len(node.kwargs) < 2:
        return named
    places = {name: k for k, name in enumerate(op.compute.arguments)}
    return sorted(named, key=lambda pair: places.get(pair[0], len(places)))


def describe_parameters(
    module: nn.Module, roles: tuple[str, ...], keep: Callable[[Tensor], Any]
) -> dict[str, ValueMeta]:
    """Describe the parameters of `module`: those of the op's row first, then others by path."""
    by_role = {role: getattr(module, role, None) for role in roles}
    named = {role: tensor for role, tensor in by_role.items() if isinstance(tensor, Tensor)}
    for name, tensor in module.named_parameters():
        if not name.startswith("parametrizations."):
            named.setdefault(name, tensor)
    return {name: describe_tensor(t, value=keep(t)) for name, t in named.items()}


def _results(node: fx.Node) -> list[ValueMeta]:
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or meta.common.results is None:
        return []
    return list(meta.common.results.values())


def _tensor_results(argument: Any) -> list[ValueMeta]:
    """Return the tensors of an argument that is a node, linked to that node."""
    if not isinstance(argument, fx.Node):
        return []
    tensors = [r for r in _results(argument) if r.is_tensor]
    return [replace(r, source=argument, is_applied=False) for r in tensors]


def _take_tensors(argument: Any, operands: dict[str, ValueMeta]) -> Any:
    """Move the tensors of an argument to `operands`; return the argument with their names."""
    if isinstance(argument, fx.Node):
        tensors = _tensor_results(argument)
        if not tensors:
            results = _results(argument)
            return results[0].value if results else None
        names = [f"data_in_{len(operands) + i}" for i in range(len(tensors))]
        operands.update(zip(names, tensors, strict=True))
        return names[0] if len(names) == 1 else names
    if isinstance(argument, tuple | list):
        return type(argument)(_take_tensors(each, operands) for each in argument)
    if isinstance(argument, dict):
        return {key: _take_tensors(each, operands) for key, each in argument.items()}
    if isinstance(argument, slice):
        parts = (argument.start, argument.stop, argument.step)
        return slice(*(_take_tensors(part, operands) for part in parts))
    return argument


def _is_only_operands(argument: Any) -> bool:
    if isinstance(argument, fx.Node):
        return any(r.is_tensor for r in _results(argument))
    parts = list(argument.values()) if isinstance(argument, dict) else argument
    return isinstance(parts, tuple | list) and bool(parts) and all(map(_is_only_operands, parts))


def named_arguments(node: fx.Node) -> list[tuple[str, Any]]:
    """Return names and arguments of a call; torch's signature names positional arguments."""
    names = _names_of(node)
    positional = list(node.args)
    if len(positional) > len(names):  # x.view(2, -1): the rest belongs to the last name
        last = len(names) - 1
        positional = [*positional[:last], tuple(positional[last:])]
    return [*zip(names, positional, strict=False), *node.kwargs.items()]


def _names_of(node: fx.Node) -> tuple[str, ...]:
    if not node.args:
        return ()
    kinds = tuple(_kind(a) for a in node.args)
    target: Any = type(node_module(node)) if node.op == "call_module" else node.target
    if node.op == "output":
        return ("data_in",)
    if node.op == "placeholder":
        return ("default",)
    try:
        return _lookup_names(node.op, target, kinds, tuple(node.kwargs))
    except TypeError:  # an unhashable target
        return tuple(f"arg_{i}" for i in range(len(kinds)))


def _kind(argument: Any) -> str:
    """Return the kind of an argument, which selects an overload."""
    return next((kind for kind, types in _KINDS.items() if isinstance(argument, types)), "other")


@functools.lru_cache(maxsize=4096)
def _lookup_names(
    op: str, target: Any, kinds: tuple[str, ...], keywords: tuple[str, ...]
) -> tuple[str, ...]:
    if target in OWN_NAMES:
        return OWN_NAMES[target][: len(kinds)]
    if op == "call_module":
        names = _python_names(target.forward)[1:]
    elif op == "call_function":
        names = _python_names(target) or _torch_names(target, kinds, keywords)
    else:
        names = _schema_names(str(target), kinds, keywords)
    return names[: len(kinds)] or tuple(f"arg_{i}" for i in range(len(kinds)))


def _python_names(function: Any) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return ()
    return tuple(p.name for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD))


def _torch_names(target: Any, kinds: tuple[str, ...], keywords: tuple[str, ...]) -> tuple[str, ...]:
    by_schema = _schema_names(getattr(target, "__name__", ""), kinds, keywords)
    if by_schema:
        return by_schema
    for signature in get_signature_for_torch_op(target) or ():
        names = tuple(signature.parameters)
        if len(names) >= len(kinds) and set(keywords) <= set(names):
            return names
    return ()


def _schema_names(name: str, kinds: tuple[str, ...], keywords: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the overload of `aten::name` that accepts these arguments."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    for schema in schemas:
        arguments = [a for a in schema.arguments if not a.kwarg_only]
        fits = len(arguments) >= len(kinds) and set(keywords) <= {a.name for a in schema.arguments}
        if fits and all(_accepts(a, k) for a, k in zip(arguments, kinds, strict=False)):
            return tuple(a.name for a in arguments)
    for schema in schemas:  # x.view(2, -1): a list written as several arguments
        for i, argument in enumerate(schema.arguments[: len(kinds)]):
            if str(argument.real_type).startswith("List["):
                return tuple(a.name for a in schema.arguments[: i + 1])
    return ()


def _accepts(argument: Any, kind: str) -> bool:
    type_name = str(argument.real_type).removeprefix("Optional[")
    if kind == "number":
        return not type_name.startswith(_NOT_A_NUMBER)
    return kind not in ("ScalarType", "Device") or type_name.startswith(kind)
