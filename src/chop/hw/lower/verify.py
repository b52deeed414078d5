"""Comparison of a design with the PyTorch model, before anything is built.

Three parties must agree on every output: the design's integers, the model in exact arithmetic
(`exact_model`, which shares no code with the design) and the model itself in double precision.
They are compared on the user's inputs and on generated ones: the ends of the input formats, their
whole range, and numbers between and beyond the values of the formats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.arguments import an, check
from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.lower.engine import table_rows
from chop.hw.lower.values import Lowered, Value
from chop.hw.reference.double_model import check_doubles
from chop.hw.reference.exact import Codes, Exact, coded, quantized
from chop.hw.reference.exact_model import (
    Environment,
    Form,
    argument_names,
    op_name,
    operand_formats,
    quantizers_of,
    result_format,
    run_exact,
)
from chop.hw.reference.exact_ops import MOVES, UNCHANGED, is_kept
from chop.ir.graph import MaseGraph

GENERATED = 32
"""Generated tensors of each input."""
BATCH = 256
"""Tensors that are compared at once."""


@dataclass(frozen=True)
class Agreement:
    """Amount of data on which a design and its model were equal."""

    tensors: int
    values: int

    def __str__(self) -> str:
        return f"{self.values} output values of {self.tensors} tensors equal the PyTorch model's"


def verify(
    graph: MaseGraph, lowered: Lowered, inputs: Any = None, *, is_generated: bool = True
) -> Agreement:
    """Check that `lowered` computes the same as the model of `graph`; raise if it does not.

    `inputs`: a batch for the graph's input, or a tuple of one for each; `is_generated` adds
    generated inputs. The error names the first node that differs, its formats, and both values.
    """
    sets = [] if inputs is None else [_tensors(inputs)]
    sets += [_generated(graph, lowered)] if is_generated else []
    values = tensors = 0
    for rows in sets:
        for start in range(0, len(rows[0]), BATCH) if rows else ():
            values += _check(graph, lowered, [x[start : start + BATCH] for x in rows])
        tensors += len(rows[0]) if rows else 0
    return Agreement(tensors, values)


TENSOR = an(Tensor, "a tensor")


def _tensors(inputs: Any) -> list[Tensor]:
    tensors = inputs if isinstance(inputs, tuple | list) else (inputs,)
    for each in tensors:
        check("inputs", TENSOR, each, HardwareError)
    return [torch.as_tensor(x).detach().double().cpu() for x in tensors]


def _check(graph: MaseGraph, lowered: Lowered, rows: Sequence[Tensor]) -> int:
    """Compare one batch; return the number of output values."""
    codes = encoded(lowered, rows)
    numbers = _numbers(graph, lowered, rows, codes)
    exact = run_exact(graph, [Exact.of(x.numpy()) for x in numbers])
    golden = lowered.design.golden(codes)
    if _first_wrong(graph, lowered, golden, exact) is not None:
        raise _difference(graph, lowered, rows, codes)
    check_doubles(graph, numbers, exact)
    return sum(each.size for each in golden.values())


def _first_wrong(
    graph: MaseGraph, lowered: Lowered, golden: Mapping[str, Ints], exact: Environment
) -> tuple[str, Exact, Exact] | None:
    """Return the first output that differs from the model: port, actual and expected."""
    for (port, value), node in zip(lowered.outputs.items(), _output_nodes(graph), strict=True):
        number = lowered.design.output_streams()[port].format
        actual = _exact_codes(value, golden[port], number)
        if actual.differs(exact[node]).any():
            return port, actual, exact[node]
    return None


def encoded(lowered: Lowered, inputs: Any) -> dict[str, Ints]:
    """Return the codes of a batch, or of a tuple with one per input of the graph, by port."""
    rows = _tensors(inputs)
    if len(rows) != len(lowered.inputs):  # drop inputs without a port
        rows = [x for k, x in enumerate(rows) if f"data_in_{k}" in lowered.inputs]
    for name, x in zip(lowered.inputs, rows, strict=False):
        size, expected = math.prod(x.shape[1:]), math.prod(lowered.design.inputs[name].shape)
        if size != expected:
            raise HardwareError(f"inputs: {name} has rows of {size} values, not of {expected}.")
    return lowered.encode(*rows)


def _output_nodes(graph: MaseGraph) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    (output,) = graph.fx_graph.find_nodes(op="output")
    fx.map_arg(output.args, nodes.append)
    return nodes


def _exact_codes(value: Value, codes: Ints, number: Fixed) -> Exact:
    """Return the numbers of a stream, in the order of torch."""
    flat = np.asarray(codes).reshape(len(codes), -1)
    placed: Codes = np.empty_like(flat)
    placed[:, value.order] = flat
    return coded(placed.reshape(len(codes), *value.shape), number.frac_width)


# -- inputs ----------------------------------------------------------------------------------------


def _numbers(
    graph: MaseGraph, lowered: Lowered, rows: Sequence[Tensor], codes: Mapping[str, Ints]
) -> list[Tensor]:
    """Return the model's inputs for `rows`: `rows`, or the numbers that the port holds.

    The port's numbers are used unless the model itself brings the input to one format.
    """
    ports = _held(graph, lowered, rows, codes)
    nodes = graph.fx_graph.find_nodes(op="placeholder")
    return [
        x if _has_one_format(graph, node) else each
        for node, x, each in zip(nodes, rows, ports, strict=True)
    ]


def _held(
    graph: MaseGraph, lowered: Lowered, rows: Sequence[Tensor], codes: Mapping[str, Ints]
) -> list[Tensor]:
    """Return the numbers that the input ports hold; for an input without a port, the input."""
    numbers = []
    for number, x in enumerate(rows):
        name = f"data_in_{number}"
        if name in lowered.inputs:
            form = lowered.design.inputs[name].format
            x = torch.from_numpy(_exact_codes(lowered.inputs[name], codes[name], form).double())
        numbers.append(x)
    return numbers


def _has_one_format(graph: MaseGraph, node: fx.Node) -> bool:
    formats = {result_format(node)} - {None} or _reading_formats(graph, node)
    return len(formats) == 1 and None not in formats


def _reading_formats(graph: MaseGraph, node: fx.Node) -> set[Form | None]:
    """Return the formats that readers of `node`, also behind views, apply; None: exact."""
    applied: set[Form | None] = set()
    for user in node.users:
        op = op_name(graph, user)
        if op in MOVES | UNCHANGED and not quantizers_of(user):
            applied |= _reading_formats(graph, user)
        elif user.op == "output":
            applied.add(None)
        else:
            formats = operand_formats(user, op)
            applied |= {formats.get(name) for name in argument_names(user, op, node)}
    return applied


def _generated(graph: MaseGraph, lowered: Lowered) -> list[Tensor]:
    """Return inputs over and beyond the ranges of the ports; zeros without a port."""
    rng = np.random.default_rng(0)
    inputs = []
    for number, node in enumerate(graph.fx_graph.find_nodes(op="placeholder")):
        name = f"data_in_{number}"
        shape = tuple(node.meta["mase"].common.results["data_out_0"]["shape"])[1:]
        if name not in lowered.inputs:
            inputs.append(torch.zeros(2 * GENERATED, *shape, dtype=torch.float64))
            continue
        form = lowered.design.inputs[name].format
        more = _between if _has_one_format(graph, node) else _spread
        codes = np.concatenate([f(rng, form, (GENERATED, *shape)) for f in (_spread, more)])
        rows = [table_rows(user) for user in node.users]
        if any(rows):  # numbers of rows that there are
            codes = np.minimum(codes, min(n for n in rows if n) - 1)
        inputs.append(torch.from_numpy(np.ldexp(codes, -form.frac_width)))
    return inputs


def _spread(rng: np.random.Generator, form: Fixed, shape: tuple[int, ...]) -> Any:
    """Return codes over the whole range of a format: its ends, zero, small ones, all of it."""
    low, high = form.low, form.high
    codes = rng.integers(low, high, shape, endpoint=True)
    near = np.clip(rng.integers(-3, 3, shape, endpoint=True), low, high)
    ends = rng.choice(np.array([low, high, 0]), shape)
    codes[0], codes[1], codes[2] = low, high, max(low, 0)
    codes[3] = ends[3]
    kind = rng.random(shape)
    mixed = np.where(kind < 0.1, ends, np.where(kind < 0.25, near, codes))
    mixed[:3] = codes[:3]
    return mixed.astype(np.float64)


def _between(rng: np.random.Generator, form: Fixed, shape: tuple[int, ...]) -> Any:
    """Return numbers between the codes, with ties, and some beyond the ends."""
    codes = _spread(rng, form, shape)
    moved = codes + rng.choice(np.array([-0.5, -0.25, 0.0, 0.25, 0.5, 0.625]), shape)
    beyond = codes * rng.choice(np.array([1.0, 1.5, -1.5, 3.0]), shape)
    return np.where(rng.random(shape) < 0.2, beyond, moved)


# -- what to say of a difference -------------------------------------------------------------------


def _difference(
    graph: MaseGraph, lowered: Lowered, rows: Sequence[Tensor], codes: Mapping[str, Ints]
) -> HardwareError:
    """Return the error for the first node that differs.

    Both run on the numbers that the input ports hold, so that a difference there is one as well.
    """
    numbers = _held(graph, lowered, rows, codes)
    exact = run_exact(graph, [Exact.of(x.numpy()) for x in numbers])
    wrong = _first_wrong(graph, lowered, lowered.design.golden(codes), exact)
    if wrong is None:
        return _unlike_port(graph, lowered, rows, numbers)
    stages = lowered.design.values(codes)
    for node in graph.fx_graph.nodes:
        value = lowered.values.get(node.name)
        if value is None or not isinstance(exact[node], Exact):
            continue
        form = lowered.design.stream(value.wire).format
        actual = _exact_codes(value, stages[value.wire.stage], form)
        if not _is_handed_on(graph, node, actual, exact[node]):
            where = f"node '{node.name}' ({op_name(graph, node)})"
            return _report(where, actual, exact[node], _settings(node))
    return _report(f"output '{wrong[0]}'", *wrong[1:], "")


def _is_handed_on(graph: MaseGraph, node: fx.Node, actual: Exact, exact: Exact) -> bool:
    """Return whether `actual` is the result of `node`, or that in a format of a reader.

    Elements that a mask fills are on no wire: the softmax behind it reads the mask.
    """
    if actual.shape != exact.shape:
        return True
    is_sent = is_kept(exact)
    if not actual.differs(exact)[is_sent].any():
        return True
    forms = [form for form in _reading_formats(graph, node) if form is not None]
    return any(not actual.differs(quantized(exact, form))[is_sent].any() for form in forms)


def _unlike_port(
    graph: MaseGraph, lowered: Lowered, rows: Sequence[Tensor], numbers: Sequence[Tensor]
) -> HardwareError:
    """Return the error for an input port that holds other numbers than the model uses."""
    for node, x, port in zip(
        graph.fx_graph.find_nodes(op="placeholder"), rows, numbers, strict=True
    ):
        forms = [f for f in _reading_formats(graph, node) if f is not None]
        expected = [quantized(Exact.of(x.numpy()), form) for form in forms[:1]]
        if expected and expected[0].differs(Exact.of(port.numpy())).any():
            return _report(
                f"node '{node.name}' (placeholder)",
                Exact.of(port.numpy()),
                expected[0],
                f" It is read as {forms[0]}.",
            )
    return HardwareError("inputs: the input ports make other numbers of them than the model does.")


def _settings(node: fx.Node) -> str:
    own = {role: str(form) for role, form in quantizers_of(node).items()}
    if not own:
        form = result_format(node)
        own = {"data_out": str(form)} if form is not None else {}
    formats = ", ".join(f"{role} = {text}" for role, text in own.items())
    return f" Its formats: {formats or 'none, it is left in float'}."


def _report(where: str, actual: Exact, expected: Exact, settings: str) -> HardwareError:
    wrong = actual.differs(expected).reshape(-1)
    first = int(wrong.argmax())
    place = [int(i) for i in np.unravel_index(first, expected.shape)]
    remedy = "Give the result of the node a format (data_out_width, data_out_frac_width)"
    if expected.divisor > 1:
        remedy += ": as it is, no fixed-point number is equal to it"
    return HardwareError(
        f"{where}: the design differs from the PyTorch model in {int(wrong.sum())} of "
        f"{wrong.size} values; the first, at {place}, is {float(actual.fraction(first))!r} and "
        f"must be {float(expected.fraction(first))!r}.{settings} {remedy}, or quantise it with "
        f"settings that hardware has."
    )
