"""Names for what a node is called with, and the metadata of its operands and results.

Tensor operands are `data_in_0`, `data_in_1` … in the order of the call; every other argument goes
by its own name in torch's signature; then come the parameters (`weight`, `bias` …). Operands are
described from the results of the nodes they come from, so a graph can be relinked without a run.
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
"""Argument names where the signature says less than it could."""

PLAIN_TYPES = {bool: "bool", int: "integer", float: "float", str: "string", type(None): "none"}
_LITERALS = (*PLAIN_TYPES, torch.dtype, torch.device, torch.layout, torch.memory_format, slice)
_NOT_A_NUMBER = ("Tensor", "ScalarType", "Device", "Layout", "Dimname", "str", "MemoryFormat")


def describe_tensor(tensor: Tensor, *, value: Any = None) -> ValueMeta:
    """Shape, dtype and number format of `tensor`."""
    strides = list(tensor.stride()) if tensor.layout is torch.strided else None
    return ValueMeta(
        shape=list(tensor.shape),
        torch_dtype=tensor.dtype,
        value=value,
        device=tensor.device,
        stride=strides,
    )


def is_plain(value: Any) -> bool:
    """Whether `value` is a literal, or a container of literals, and so may be kept and written."""
    if isinstance(value, tuple | list):
        return all(is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(is_plain(v) for v in value.values())
    return isinstance(value, _LITERALS) or value is Ellipsis


def describe_value(value: Any) -> ValueMeta:
    """A configuration value or a result that is not a tensor."""
    kind = PLAIN_TYPES.get(type(value), type(value).__name__)
    return ValueMeta(type=kind, value=value if is_plain(value) else None)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, through tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)


def describe_result(
    value: Any, keep: Callable[[Tensor], Any] = lambda tensor: None
) -> dict[str, ValueMeta]:
    """`data_out_0` … for the tensors in `value`, or the value itself where there are none."""
    if isinstance(value, Tensor):
        return {"data_out_0": describe_tensor(value, value=keep(value))}
    found = [describe_tensor(t, value=keep(t)) for t in tensors_in(value)]
    found = found or [describe_value(value)]
    return {f"data_out_{i}": each for i, each in enumerate(found)}


def describe_arguments(
    node: fx.Node, op: Op | None, keep: Callable[[Tensor], Any] = lambda tensor: None
) -> dict[str, ValueMeta]:
    """The `args` of `node`, from the results its inputs are annotated with."""
    roles = op.parameters if op else ()
    operands: dict[str, ValueMeta] = {}
    config: dict[str, ValueMeta] = {}
    parameters: dict[str, ValueMeta] = {}
    for name, given in _in_order(node, op):
        if name in roles and isinstance(given, fx.Node) and _gives_tensors(given):
            parameters[name] = _tensor_results(given)[0]
            continue
        value = _take_tensors(given, operands)
        if not _is_only_operands(given):
            source = given if isinstance(given, fx.Node) else None
            config[name] = replace(describe_value(value), source=source)
    if node.op == "call_module":
        parameters |= describe_parameters(node_module(node), roles, keep)
    return operands | config | parameters


def operand_nodes(node: fx.Node, op: Op | None) -> dict[str, fx.Node]:
    """The nodes that the tensor operands of a call come from, by name: `data_in_0` …"""
    roles = op.parameters if op else ()
    operands: dict[str, ValueMeta] = {}
    for name, given in _in_order(node, op):
        if not (name in roles and isinstance(given, fx.Node)):
            _take_tensors(given, operands)
    return {name: v.source for name, v in operands.items() if v.source is not None}


def _in_order(node: fx.Node, op: Op | None) -> list[tuple[str, Any]]:
    """The arguments of a call by name, in the order of the op's row also where named in another."""
    named = named_arguments(node)
    if op is None or op.compute is None or len(node.kwargs) < 2:
        return named
    places = {name: k for k, name in enumerate(op.compute.arguments)}
    return sorted(named, key=lambda pair: places.get(pair[0], len(places)))


def describe_parameters(
    module: nn.Module, roles: tuple[str, ...], keep: Callable[[Tensor], Any]
) -> dict[str, ValueMeta]:
    """The parameters of `module`: those the op names first, then the rest by their path."""
    named: dict[str, Tensor] = {}
    for role in roles:
        tensor = getattr(module, role, None)
        if isinstance(tensor, Tensor):
            named[role] = tensor
    for name, tensor in module.named_parameters():
        if not name.startswith("parametrizations."):
            named.setdefault(name, tensor)
    return {name: describe_tensor(t, value=keep(t)) for name, t in named.items()}


def _results(node: fx.Node) -> list[ValueMeta]:
    found = node.meta.get("mase")
    if not isinstance(found, MaseMetadata) or found.common.results is None:
        return []
    return list(found.common.results.values())


def _tensor_results(given: Any) -> list[ValueMeta]:
    """The tensors a node argument stands for, linked to where they come from."""
    if not isinstance(given, fx.Node):
        return []
    return [replace(r, source=given, is_applied=False) for r in _results(given) if r.is_tensor]


def _gives_tensors(node: fx.Node) -> bool:
    return any(r.is_tensor for r in _results(node))


def _take_tensors(given: Any, operands: dict[str, ValueMeta]) -> Any:
    """Move the tensors of an argument to `operands`; what is left names them where they were."""
    if isinstance(given, fx.Node):
        tensors = _tensor_results(given)
        if not tensors:
            results = _results(given)
            return results[0].value if results else None
        names = [f"data_in_{len(operands) + i}" for i in range(len(tensors))]
        operands.update(zip(names, tensors, strict=True))
        return names[0] if len(names) == 1 else names
    if isinstance(given, tuple | list):
        return type(given)(_take_tensors(each, operands) for each in given)
    if isinstance(given, dict):
        return {key: _take_tensors(each, operands) for key, each in given.items()}
    if isinstance(given, slice):
        return slice(*(_take_tensors(x, operands) for x in (given.start, given.stop, given.step)))
    return given


def _is_only_operands(given: Any) -> bool:
    if isinstance(given, fx.Node):
        return _gives_tensors(given)
    parts = list(given.values()) if isinstance(given, dict) else given
    return isinstance(parts, tuple | list) and bool(parts) and all(map(_is_only_operands, parts))


def named_arguments(node: fx.Node) -> list[tuple[str, Any]]:
    """Pairs of name and argument, positional ones named from torch's signature."""
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
    """What is known of an argument without running: enough to tell overloads apart."""
    if isinstance(argument, fx.Node):
        return "node"
    if isinstance(argument, torch.dtype):
        return "ScalarType"
    if isinstance(argument, torch.device):
        return "Device"
    if isinstance(argument, int | float):
        return "number"
    return "other"


@functools.lru_cache(maxsize=4096)
def _lookup_names(
    op: str, target: Any, kinds: tuple[str, ...], keywords: tuple[str, ...]
) -> tuple[str, ...]:
    if target in OWN_NAMES:
        return OWN_NAMES[target][: len(kinds)]
    if op == "call_module":
        found = _python_names(target.forward)[1:]
    elif op == "call_function":
        found = _python_names(target) or _torch_names(target, kinds, keywords)
    else:
        found = _schema_names(str(target), kinds, keywords)
    if not found:
        return tuple(f"arg_{i}" for i in range(len(kinds)))
    return found[: len(kinds)]


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
    """Names from the overload of `aten::name` that these arguments can call."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    for schema in schemas:
        arguments = [a for a in schema.arguments if not a.kwarg_only]
        fits = len(arguments) >= len(kinds) and set(keywords) <= {a.name for a in schema.arguments}
        if fits and all(_accepts(a, k) for a, k in zip(arguments, kinds, strict=False)):
            return tuple(a.name for a in arguments)
    return _variadic_names(schemas, kinds)


def _variadic_names(schemas: Any, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """x.view(2, -1) or x.permute(0, 2, 1): a list written out as arguments."""
    for schema in schemas:
        for i, argument in enumerate(schema.arguments[: len(kinds)]):
            if str(argument.real_type).startswith("List["):
                return tuple(a.name for a in schema.arguments[: i + 1])
    return ()


def _accepts(argument: Any, kind: str) -> bool:
    wanted = str(argument.real_type).removeprefix("Optional[")
    if kind == "number":
        return not wanted.startswith(_NOT_A_NUMBER)
    if kind in ("ScalarType", "Device"):
        return wanted.startswith(kind)
    return True
