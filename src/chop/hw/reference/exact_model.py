"""The quantised model in exact arithmetic, node by node, from the definitions alone.

It reads the graph, the layers' weights and settings, and the fields of the number formats that are
applied; it shares nothing with the lowering, the golden models or the quantisers' own code, and so
can tell whether a design computes what the model does.
"""

from __future__ import annotations

import copy
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
"""What each node gives: an `Exact`, or a plain value such as a size."""


def run_exact(graph: MaseGraph, inputs: Sequence[Exact]) -> Environment:
    """What every node of `graph` gives for batches of inputs, in the order of its inputs."""
    found: Environment = {}
    remaining = iter(inputs)
    for node in graph.fx_graph.nodes:
        try:
            found[node] = _value(graph, node, found, remaining)
        except HardwareError as error:
            if str(error).startswith("node '"):
                raise
            raise HardwareError(f"node '{node.name}' ({op_name(graph, node)}): {error}") from error
    return found


def op_name(graph: MaseGraph, node: fx.Node) -> str:
    """The op of `node` in the op table, or what it calls."""
    op = find_op(node, graph.custom_ops)
    return op.name if op else str(node.target)


def _value(graph: MaseGraph, node: fx.Node, found: Environment, inputs: Any) -> Any:
    if node.op == "placeholder":
        return _input(node, next(inputs))
    if node.op == "get_attr":
        return _exact(_attribute(graph, node))
    given, named = fx.map_arg((node.args, dict(node.kwargs)), lambda n: found[n])
    if node.op == "output":
        return given[0]
    name = op_name(graph, node)
    formats = operand_formats(node, name)
    if name in MOVES and isinstance(given[0], Exact):
        result = _moved(node, [_brought(given[0], formats["input"]), *given[1:]], named)
    elif name in UNCHANGED:
        result = _brought(given[0], formats["input"])
    elif name in EXACT_OPS:
        result = EXACT_OPS[name](_arguments(node, name, given, named, formats))
    else:
        result = _called(node, given, named, formats)
    return _brought(result, result_format(node))


def _input(node: fx.Node, x: Exact) -> Any:
    """An input in its format; truth values are torch's."""
    results = mase_meta(node).common.results or {}
    is_truth = "data_out_0" in results and results["data_out_0"].torch_dtype is torch.bool
    if is_truth:
        return torch.from_numpy(x.codes.astype(bool))
    return _brought(x, result_format(node))


def _attribute(graph: MaseGraph, node: fx.Node) -> Any:
    found: Any = graph.model
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _exact(value: Any) -> Any:
    """Return the exact numbers of a tensor of floats, any other value as it is.

    Minus infinity, which masks have, is `LEAST`.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        numbers = value.detach().double().cpu().numpy()
        return Exact.of(np.where(np.isneginf(numbers), float(LEAST), numbers))
    return value


def _brought(value: Any, form: Form | None) -> Any:
    return quantized(value, form) if form is not None and isinstance(value, Exact) else value


# -- the formats that are applied ------------------------------------------------------------------


def quantizers_of(node: fx.Node) -> Mapping[str, Quantizer]:
    """What `node` quantises itself, by role; nothing where it is left in float."""
    if node.op == "call_module":
        module = node_module(node)
        return module.quantizers if isinstance(module, QuantizedModule) else {}
    if node.op == "call_function" and is_quantized_function(node.target):
        return call_quantizers(node.target, node.kwargs.get("config"))
    return {}


def operand_formats(node: fx.Node, op: str) -> dict[str, Form | None]:
    """The format that each argument of `node` is brought to, by name; None where it is not."""
    own = quantizers_of(node)
    if own:
        roles = {"input": "data_in" if "data_in" in own else "data_in_0", "other": "data_in_1"}
        names = (*roles, "weight", "bias")
        return {n: _checked(node, roles.get(n, n), own.get(roles.get(n, n))) for n in names}
    args = mase_meta(node).common.args or {}
    found: dict[str, Form | None] = {}
    operands = [n for n in argument_names(node, op) if n not in ("weight", "bias")]
    for number, name in enumerate(operands):
        found[name] = _by_hand(node, args.get(f"data_in_{number}"))
    for number in range(len(_listed(node))):
        found[f"tensors_{number}"] = _by_hand(node, args.get(f"data_in_{number}"))
    for name in ("weight", "bias"):
        found[name] = _by_hand(node, args.get(name))
    return {"input": None, "other": None} | found


def _listed(node: fx.Node) -> Sequence[Any]:
    """The tensors of a call that takes a list of them."""
    first = node.args[0] if node.args else node.kwargs.get("tensors")
    return first if isinstance(first, tuple | list) else ()


def argument_names(node: fx.Node, op: str, value: fx.Node | None = None) -> list[str]:
    """Names of the arguments that are nodes, or that are `value`, in the order of the call."""
    names = ARGUMENTS.get(op, ("input",))
    given = [*zip(names, node.args, strict=False), *node.kwargs.items()]
    nodes = [(name, each) for name, each in given if isinstance(each, fx.Node)]
    return [name for name, each in nodes if value is None or each is value]


def result_format(node: fx.Node) -> Form | None:
    """The format that `node` brings its result to; None where it does not."""
    own = quantizers_of(node)
    if own:
        return _checked(node, "data_out", own.get("data_out"))
    return _by_hand(node, (mase_meta(node).common.results or {}).get("data_out_0"))


def _by_hand(node: fx.Node, meta: ValueMeta | None) -> Form | None:
    """A format in the metadata of a node that has no quantisers: one set by hand."""
    if meta is None or not meta.is_applied:
        return None
    return _checked(node, "format", meta.format)


def _checked(node: fx.Node, role: str, form: Quantizer | None) -> Form | None:
    """`form`, refused where hardware has it not or it is not the same at each run."""
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
    given: Sequence[Any],
    named: Mapping[str, Any],
    formats: Mapping[str, Form | None],
) -> dict[str, Any]:
    """The arguments of a call by name: settings of the layer, operands in their formats."""
    found: dict[str, Any] = {}
    if node.op == "call_module":
        module = node_module(node)
        found = {n: _exact(getattr(module, n)) for n in ARGUMENTS[op] if hasattr(module, n)}
        found["training"] = False  # hardware is the model at inference
    found |= dict(zip(ARGUMENTS[op], given, strict=False)) | dict(named)
    if str(getattr(node.target, "__name__", node.target)) == "rsub":
        found["input"], found["other"] = found["other"], found["input"]
    numbers = [n for n in ("input", "other") if isinstance(found.get(n), int | float)]
    found |= {name: constant(found[name]) for name in numbers}
    if isinstance(found.get("tensors"), tuple | list):
        listed = enumerate(found["tensors"])
        found["tensors"] = [_brought(v, formats.get(f"tensors_{k}")) for k, v in listed]
    kept = dict.fromkeys(numbers)  # as in PyTorch, a format rounds tensors and no plain number
    told = {n: _brought(v, {**formats, **kept}.get(n)) for n, v in found.items() if n != "config"}
    if node_arithmetic(node) == "integer":
        told["integer"] = {**formats, "data_out": result_format(node), "given": found["input"]}
    return told


def _moved(node: fx.Node, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What an op that only moves numbers gives: torch moves their places."""
    x = given[0]
    places = torch.arange(x.codes.size).reshape(x.shape)
    moved = _call(node, [places, *given[1:]], named)
    parts = moved if isinstance(moved, tuple | list) else [moved]
    taken = tuple(x.take(x.codes.reshape(-1)[part.numpy()]) for part in parts)
    return taken if isinstance(moved, tuple | list) else taken[0]


def _call(node: fx.Node, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The node's own call on torch values."""
    if node.op == "call_module":
        return copy.deepcopy(node_module(node)).double().eval()(*given, **named)
    if node.op == "call_method":
        return getattr(given[0], str(node.target))(*given[1:], **named)
    return node.target(*given, **named)  # type: ignore[operator]


def _called(
    node: fx.Node,
    given: Sequence[Any],
    named: Mapping[str, Any],
    formats: Mapping[str, Form | None],
) -> Any:
    """An op without a definition here (sizes, ops of the user's own): torch's, in doubles."""
    if isinstance(given[0], Exact) and op_of_size(node):
        shape = torch.Size(given[0].shape)
        return shape if len(given) == 1 and not named else shape[_index(given, named)]
    operands = [_brought(v, formats["input"] if i == 0 else None) for i, v in enumerate(given)]
    with torch.no_grad():
        return _exact(_call(node, [_doubles(v) for v in operands], _doubled(named)))


def op_of_size(node: fx.Node) -> bool:
    """Whether `node` asks for a tensor's size."""
    return node.op == "call_method" and node.target == "size"


def _index(given: Sequence[Any], named: Mapping[str, Any]) -> int:
    return int(given[1] if len(given) > 1 else named["dim"])


def _doubles(value: Any) -> Any:
    return torch.from_numpy(np.array(value.double())) if isinstance(value, Exact) else value


def _doubled(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _doubles(value) for name, value in named.items()}
