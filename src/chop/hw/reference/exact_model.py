"""The quantised model in exact arithmetic, node by node, from the definitions alone.

It reads the graph, the layers' weights and settings, and the fields of the applied number formats.
It shares no code with the lowering, the golden models or the quantisers, so that it can check
whether a design computes the same values as the model.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx

from chop.errors import HardwareError
from chop.hw.reference.exact import Exact, constant, quantized
from chop.hw.reference.exact_ops import ARGUMENTS, EXACT_OPS, LEAST, MOVES, UNCHANGED
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.ops import find_op, node_module
from chop.nn.quantized.functional import call_quantizers, is_quantized_function
from chop.nn.quantized.integer_calls import node_arithmetic
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Integer, MXInt, Quantizer

ROUNDINGS = ("nearest_even", "nearest_away", "floor", "toward_zero")
Form = Integer | MXInt
"""The formats that hardware has."""
Environment = dict[fx.Node, Any]
"""Result of each node: an `Exact`, or a plain value such as a size."""


def run_exact(graph: MaseGraph, inputs: Sequence[Exact]) -> Environment:
    """Return the result of every node of `graph` for batches of inputs, in their order."""
    values: Environment = {}
    remaining = iter(inputs)
    for node in graph.fx_graph.nodes:
        try:
            values[node] = _value(graph, node, values, remaining)
        except HardwareError as error:
            if str(error).startswith("node '"):
                raise
            raise HardwareError(f"node '{node.name}' ({op_name(graph, node)}): {error}") from error
    return values


def op_name(graph: MaseGraph, node: fx.Node) -> str:
    """Return the op of `node` in the op table, or the target of its call."""
    op = find_op(node, graph.custom_ops)
    return op.name if op else str(node.target)


def _value(graph: MaseGraph, node: fx.Node, values: Environment, inputs: Any) -> Any:
    if node.op == "placeholder":
        return _input(node, next(inputs))
    if node.op == "get_attr":
        return _exact(functools.reduce(getattr, str(node.target).split("."), graph.model))
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
    if node.op == "output":
        return args[0]
    name = op_name(graph, node)
    formats = operand_formats(node, name)
    if name in MOVES and isinstance(args[0], Exact):
        result = _moved(node, [_brought(args[0], formats["input"]), *args[1:]], kwargs)
    elif name in UNCHANGED:
        result = _brought(args[0], formats["input"])
    elif name in EXACT_OPS:
        result = EXACT_OPS[name](_arguments(node, name, args, kwargs, formats))
    else:
        result = _called(node, args, kwargs, formats)
    return _brought(result, result_format(node))


def _input(node: fx.Node, x: Exact) -> Any:
    results = mase_meta(node).common.results or {}
    is_truth = "data_out_0" in results and results["data_out_0"].torch_dtype is torch.bool
    if is_truth:
        return torch.from_numpy(x.codes.astype(bool))
    return _brought(x, result_format(node))


def _exact(value: Any) -> Any:
    """Return the exact numbers of a tensor of floats, any other value unchanged.

    Minus infinity, which masks have and log(0) is, is `LEAST`, and infinity is its opposite.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        numbers = value.detach().double().cpu().numpy()
        return Exact.of(np.clip(numbers, float(LEAST), -float(LEAST)))
    return value


def _brought(value: Any, form: Form | None) -> Any:
    return quantized(value, form) if form is not None and isinstance(value, Exact) else value


# -- the formats that are applied ------------------------------------------------------------------


def quantizers_of(node: fx.Node) -> Mapping[str, Quantizer]:
    """Return the quantisers of `node` by role; none if it computes in float."""
    if node.op == "call_module":
        module = node_module(node)
        return module.quantizers if isinstance(module, QuantizedModule) else {}
    if node.op == "call_function" and is_quantized_function(node.target):
        return call_quantizers(node.target, node.kwargs.get("config"))
    return {}


def operand_formats(node: fx.Node, op: str) -> dict[str, Form | None]:
    """Return the format that `node` brings each argument to, by name, or None."""
    own = quantizers_of(node)
    if own:
        roles = {"input": "data_in" if "data_in" in own else "data_in_0", "other": "data_in_1"}
        names = (*roles, "weight", "bias")
        return {n: _checked(node, roles.get(n, n), own.get(roles.get(n, n))) for n in names}
    args = mase_meta(node).common.args or {}
    formats: dict[str, Form | None] = {}
    operands = [n for n in argument_names(node, op) if n not in ("weight", "bias")]
    for number, name in enumerate(operands):
        formats[name] = _by_hand(node, args.get(f"data_in_{number}"))
    first = node.args[0] if node.args else node.kwargs.get("tensors")
    for number in range(len(first) if isinstance(first, tuple | list) else 0):
        formats[f"tensors_{number}"] = _by_hand(node, args.get(f"data_in_{number}"))
    for name in ("weight", "bias"):
        formats[name] = _by_hand(node, args.get(name))
    return {"input": None, "other": None} | formats


def argument_names(node: fx.Node, op: str, value: fx.Node | None = None) -> list[str]:
    """Return the names of arguments that are nodes, or that are `value`, in call order."""
    names = ARGUMENTS.get(op, ("input",))
    arguments = [*zip(names, node.args, strict=False), *node.kwargs.items()]
    nodes = [(name, each) for name, each in arguments if isinstance(each, fx.Node)]
    return [name for name, each in nodes if value is None or each is value]


def result_format(node: fx.Node) -> Form | None:
    """Return the format that `node` brings its result to, or None."""
    own = quantizers_of(node)
    if own:
        return _checked(node, "data_out", own.get("data_out"))
    return _by_hand(node, (mase_meta(node).common.results or {}).get("data_out_0"))


def _by_hand(node: fx.Node, meta: ValueMeta | None) -> Form | None:
    """Return a format that a user set in the metadata of a node without quantisers."""
    if meta is None or not meta.is_applied:
        return None
    return _checked(node, "format", meta.format)


def _checked(node: fx.Node, role: str, form: Quantizer | None) -> Form | None:
    """Return `form`; raise if hardware does not have it or it is random."""
    if form is None or form.is_bypass:
        return None
    if form.wire is None:
        raise HardwareError(
            f"node '{node.name}': {role} is in the format '{form.name}'. Hardware has fixed point "
            f"and MXINT: quantise it to 'integer' or 'mxint'."
        )
    form = cast(Form, form)
    if form.rounding not in ROUNDINGS:
        raise HardwareError(
            f"node '{node.name}': {role}_rounding = '{form.rounding}'. "
            f"Allowed: {', '.join(ROUNDINGS)}."
        )
    return form


# -- calls -----------------------------------------------------------------------------------------


def _arguments(
    node: fx.Node,
    op: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    formats: Mapping[str, Form | None],
) -> dict[str, Any]:
    """Return the arguments of a call by name: layer settings, operands in their formats."""
    arguments: dict[str, Any] = {}
    if node.op == "call_module":
        module = node_module(node)
        arguments = {n: _exact(getattr(module, n)) for n in ARGUMENTS[op] if hasattr(module, n)}
        arguments["training"] = False  # hardware is the model at inference
    arguments |= dict(zip(ARGUMENTS[op], args, strict=False)) | dict(kwargs)
    if str(getattr(node.target, "__name__", node.target)) == "rsub":
        arguments["input"], arguments["other"] = arguments["other"], arguments["input"]
    numbers = [n for n in ("input", "other") if isinstance(arguments.get(n), int | float)]
    arguments |= {name: constant(arguments[name]) for name in numbers}
    if isinstance(arguments.get("tensors"), tuple | list):
        listed = enumerate(arguments["tensors"])
        arguments["tensors"] = [_brought(v, formats.get(f"tensors_{k}")) for k, v in listed]
    plain = dict.fromkeys(numbers)  # as in PyTorch, a format rounds tensors and no plain number
    operands = {
        n: _brought(v, {**formats, **plain}.get(n)) for n, v in arguments.items() if n != "config"
    }
    if node_arithmetic(node) == "integer":
        operands["integer"] = {
            **formats,
            "data_out": result_format(node),
            "given": arguments["input"],
        }
    return operands


def _moved(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an op that only moves numbers: torch moves their places."""
    x = args[0]
    places = torch.arange(x.codes.size).reshape(x.shape)
    moved = _call(node, [places, *args[1:]], kwargs)
    parts = moved if isinstance(moved, tuple | list) else [moved]
    results = tuple(x.take(x.codes.reshape(-1)[part.numpy()]) for part in parts)
    return results if isinstance(moved, tuple | list) else results[0]


def _call(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the node's call on torch values."""
    if node.op == "call_module":
        return copy.deepcopy(node_module(node)).double().eval()(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _called(
    node: fx.Node,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    formats: Mapping[str, Form | None],
) -> Any:
    """Run an op without a definition here (sizes, a user's ops) in torch, in doubles."""
    if isinstance(args[0], Exact) and op_of_size(node):
        shape = torch.Size(args[0].shape)
        dims = [*args[1:], *kwargs.values()]
        return shape[int(dims[0])] if dims else shape
    operands = [_brought(v, formats["input"] if i == 0 else None) for i, v in enumerate(args)]
    with torch.no_grad():
        doubled = {name: _doubles(value) for name, value in kwargs.items()}
        return _exact(_call(node, [_doubles(v) for v in operands], doubled))


def op_of_size(node: fx.Node) -> bool:
    """Return whether `node` reads a tensor's size."""
    return node.op == "call_method" and node.target == "size"


def _doubles(value: Any) -> Any:
    return torch.from_numpy(np.array(value.double())) if isinstance(value, Exact) else value
