"""Registry of the ops, and lookup of a node's op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx, nn

from chop.errors import GraphError, RegistryError
from chop.ir.ops import (
    activations,
    contractions,
    elementwise,
    images,
    lookup,
    matrix,
    norms,
    recurrent,
    sequence_ops,
    shapes,
)
from chop.ir.ops.row import GET_ATTR, IMPLICIT_FUNC, MODULE, OUTPUT, PLACEHOLDER, Op
from chop.registry import Registry

OPS: Registry[Op] = Registry("op")

_BY_MODULE: dict[type[nn.Module], Op] = {}
_BY_MODULE_NAME: dict[str, Op] = {}
FUNCTION_OPS: dict[Callable[..., Any], Op] = {}
"""Function -> op."""
METHOD_OPS: dict[str, Op] = {}
"""Tensor method -> op."""


def register_op(op: Op) -> Op:
    """Add a row; raise if its name or a target is registered already."""
    if op.name in OPS:
        raise RegistryError(f"op '{op.name}' is already registered.")
    tables: list[tuple[dict[Any, Op], Iterable[Any]]] = [
        (_BY_MODULE, op.modules),
        (_BY_MODULE_NAME, op.module_names),
        (FUNCTION_OPS, op.functions),
        (METHOD_OPS, op.methods),
    ]
    for table, keys in tables:
        for key in (key for key in keys if key in table):
            owner, what = table[key].name, getattr(key, "__name__", key)
            raise RegistryError(f"op '{op.name}': '{what}' stands for op '{owner}' already.")
    for table, keys in tables:
        table.update(dict.fromkeys(keys, op))
    return OPS.register(op.name, op)


for _row in (
    *contractions.ROWS,
    *norms.ROWS,
    *sequence_ops.ROWS,
    *recurrent.ROWS,
    *activations.PASSING,
    *lookup.ROWS,
    *activations.ROWS,
    *activations.DROPOUTS,
    *contractions.FUSED,
    *contractions.PACKED,
    *images.POOLS,
    *images.ROWS,
    *activations.LOSSES,
    *matrix.ROWS,
    *elementwise.ROWS,
    *matrix.REDUCTIONS,
    *shapes.MOVEMENTS,
    *sequence_ops.CACHE_ROWS,
    *shapes.ROWS,
):
    register_op(_row)


def op_of_module(module: nn.Module) -> Op | None:
    """Return the row of a module's nearest class, or its class attribute `op`."""
    for cls in type(module).__mro__:
        if cls in _BY_MODULE:
            return _BY_MODULE[cls]
    own = getattr(type(module), "op", None)
    if isinstance(own, Op):
        return own
    name = type(module).__name__
    return next((op for ending, op in _BY_MODULE_NAME.items() if name.endswith(ending)), None)


def op_of_function(target: Any) -> Op | None:
    """Return the row of a torch function, a Python operator or a quantised version of one."""
    try:
        row = FUNCTION_OPS.get(target)
    except TypeError:  # an unhashable callable
        return None
    own = getattr(target, "op", None)
    return own if row is None and isinstance(own, Op) else row


def op_of_method(name: str) -> Op | None:
    """Return the row of a tensor method."""
    return METHOD_OPS.get(name)


def find_op(node: fx.Node, custom_ops: Mapping[str, Any] | None = None) -> Op | None:
    """Return the row of `node`, or None if its op is in no table."""
    if node.op in (PLACEHOLDER, GET_ATTR, OUTPUT):
        return OPS[node.op]
    if node.op == "call_method":
        return op_of_method(str(node.target))
    if node.op == "call_function":
        return _custom(node.target, custom_ops, "functions") or op_of_function(node.target)
    module = node_module(node)
    return _custom(type(module), custom_ops, "modules") or op_of_module(module)


def _custom(target: Any, custom_ops: Mapping[str, Any] | None, kind: str) -> Op | None:
    """Return the user's op: `custom_ops={"modules": {MyLayer: {...}}}`."""
    listed = (custom_ops or {}).get(kind, {})
    if target not in listed:
        return None
    row = listed[target]
    if isinstance(row, Op):
        return row
    name = (row or {}).get("mase_op") or getattr(target, "__name__", "custom").lower()
    kind_type = MODULE if kind == "modules" else IMPLICIT_FUNC
    return Op(name, (row or {}).get("mase_type", kind_type))


def node_module(node: fx.Node) -> nn.Module:
    """Return the module that a `call_module` node calls."""
    owner = node.graph.owning_module
    if owner is None:
        raise GraphError(f"node '{node.name}': its graph belongs to no module.")
    return owner.get_submodule(str(node.target))
