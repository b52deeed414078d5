"""The PyTorch model run in double precision, node by node, beside its exact values.

Sums of fixed-point products are exact in double precision, so the two are equal. If doubles had
to be rounded (a third, a table, numbers of more than 53 bits), they are equal up to that rounding.
The exact value is then passed on, so that later nodes are compared on equal terms.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.errors import HardwareError
from chop.hw.reference.exact import Exact, quantized
from chop.hw.reference.exact_model import (
    Environment,
    Form,
    argument_names,
    op_name,
    operand_formats,
    quantizers_of,
    result_format,
)
from chop.hw.reference.exact_ops import ARGUMENTS, LEAST, is_kept
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta

ROUNDING = 2.0**-44
"""Relative to the largest number of a tensor: what rounding in double precision may come to."""


def check_doubles(graph: MaseGraph, inputs: Sequence[Tensor], exact: Environment) -> None:
    """Raise if the PyTorch model gives another value for a node than `exact`."""
    model = copy.deepcopy(graph.model).double().eval()
    values: dict[str, Any] = {}
    remaining = iter(inputs)
    with torch.no_grad():
        for node in graph.fx_graph.nodes:
            if node.op == "output":
                break
            value = _value(model, graph, node, _read(graph, node, values, exact), remaining)
            values[node.name] = _same(graph, node, value, exact[node])


def _value(
    model: Any, graph: MaseGraph, node: fx.Node, values: Mapping[str, Any], inputs: Any
) -> Any:
    if node.op == "placeholder":
        return _brought(next(inputs).to(_dtype(node)), result_format(node))
    if node.op == "get_attr":
        return functools.reduce(getattr, str(node.target).split("."), model)
    args: Any
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: values[n.name])
    if quantizers_of(node):
        return _call(model, node, args, kwargs, {})
    formats = operand_formats(node, op_name(graph, node))
    names = ARGUMENTS.get(op_name(graph, node), ("input",))
    args = [
        _brought(a, formats.get(names[i]) if i < len(names) else None) for i, a in enumerate(args)
    ]
    if args and isinstance(args[0], tuple | list):
        args[0] = [_brought(a, formats.get(f"tensors_{k}")) for k, a in enumerate(args[0])]
    kwargs = {name: _brought(a, formats.get(name)) for name, a in kwargs.items()}
    return _brought(_call(model, node, args, kwargs, formats), result_format(node))


def _read(
    graph: MaseGraph, node: fx.Node, values: Mapping[str, Any], exact: Environment
) -> Mapping[str, Any]:
    """Return the operands of `node`; those that no double holds are already in its format.

    A number just beside a tie would be rounded to the tie, and from there to the other side.
    """
    op = op_name(graph, node)
    formats = operand_formats(node, op) if node.op.startswith("call") else {}
    changed = {}
    for source in node.all_input_nodes:
        forms = {formats.get(name) for name in argument_names(node, op, source)} - {None}
        number = exact[source]
        if len(forms) == 1 and isinstance(number, Exact) and not number.is_double:
            rounded = np.where(
                is_kept(number), quantized(number, *forms).double(), values[source.name]
            )
            changed[source.name] = torch.from_numpy(rounded)
    return {**values, **changed}


def _dtype(node: fx.Node) -> torch.dtype:
    dtype = mase_meta(node).common["results"]["data_out_0"].torch_dtype
    is_whole = dtype is not None and not dtype.is_floating_point
    return dtype if is_whole else torch.float64


def _brought(value: Any, form: Form | None) -> Any:
    is_operand = isinstance(value, Tensor) and value.is_floating_point()
    return form.quantize(value) if form is not None and is_operand else value


def _call(
    model: Any,
    node: fx.Node,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    formats: Mapping[str, Form | None],
) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.op == "call_function":
        return node.target(*args, **kwargs)  # type: ignore[operator]
    module = model.get_submodule(str(node.target))
    own = {n: p for n, p in module.named_parameters(recurse=False) if formats.get(n) is not None}
    changed = {name: _brought(p, formats[name]) for name, p in own.items()}
    return torch.func.functional_call(module, changed, tuple(args), dict(kwargs))


def _same(graph: MaseGraph, node: fx.Node, value: Any, exact: Any) -> Any:
    """Return `value` if it is exact; the exact value if doubles had to be rounded."""
    if not isinstance(value, Tensor) or not isinstance(exact, Exact):
        return value
    expected = np.asarray(exact.double())
    actual = np.clip(value.numpy().reshape(expected.shape), float(LEAST), -float(LEAST))
    if np.array_equal(actual, expected):
        return value
    away = np.abs(actual - expected)
    form = result_format(node)
    fixed = None if form is None else form.fixed_point
    step = 0.0 if fixed is None else fixed.integer_step()  # rounded the other way
    allowed = step + ROUNDING * float(np.abs(expected).max(initial=0.0))
    # a format may round what doubles did not hold
    may_round = exact.is_rounded or not exact.is_double or (form and exact.was_rounded)
    if may_round and bool((away <= allowed).all()):
        return torch.from_numpy(expected.copy())
    place = tuple(int(i) for i in np.unravel_index(int(away.argmax()), away.shape))
    raise HardwareError(
        f"node '{node.name}' ({op_name(graph, node)}): PyTorch in double precision gives "
        f"{actual[place]!r} at {list(place)}, its definition in exact arithmetic "
        f"{expected[place]!r}. The design is held to the definition and cannot be checked: leave "
        f"the op out, or define it in chop.hw.reference.exact_ops.EXACT_OPS."
    )
