"""Operators with graphs of their own, and operators on sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.errors import ExportError
from chop.export.onnx_import.call import Call, operator, register_operators
from chop.export.onnx_import.host_values import Ints, as_tensor, is_host
from chop.export.onnx_import.onnx_file import Subgraph
from chop.export.onnx_import.rewrites import PROBLEMS
from chop.files import shown


def _graph(call: Call, name: str) -> Subgraph:
    graph = call.attribute(name)
    if not isinstance(graph, Subgraph):
        raise ValueError(f"no graph '{name}'")
    return graph


def _truth(value: Any, name: str) -> bool:
    """Return a condition as True or False; raise if it depends on tensors."""
    if isinstance(value, Ints):
        value = value[0]
    if not is_host(value):
        raise ExportError(
            f"its condition {shown(name)} depends on values, not on sizes alone. "
            "Give the inputs that it depends on as constants=…"
        )
    return bool(value)


@operator("If")
def _if(call: Call) -> Any:
    """Run the branch of a condition on sizes; select between both if it is on values."""
    then, other = _graph(call, "then_branch"), _graph(call, "else_branch")
    condition = call.host(0)
    if condition is not None:
        return tuple(call.run(then if _truth(condition, call.name(0)) else other))
    try:
        pairs = list(zip(call.run(then), call.run(other), strict=True))
    except PROBLEMS as error:
        raise ExportError(
            f"its condition {shown(call.name(0))} depends on values, and both branches do not run "
            f"on the same inputs. Give the inputs that it depends on as constants=… ({error})"
        ) from error
    tensors = [tuple(as_tensor(v) for v in pair) for pair in pairs]
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in tensors):
        return (_truth(call.tensor(0), call.name(0)),)  # raises: the shape depends on values
    choice = call.tensor(0).reshape(())
    return tuple(torch.where(choice, a, b) for a, b in tensors)


@operator("Loop")
def _loop(call: Call) -> Any:
    """Unroll a loop; a number of steps that depends on sizes becomes a guard of the capture."""
    body = _graph(call, "body")
    limit = int(call.number(0)) if call.given(0) else None
    is_going = _truth(call.host(1), call.name(1)) if call.given(1) else True
    states = [_state(call, i) for i in range(2, call.count)]
    scans: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(states) :]]
    step = 0
    while is_going and (limit is None or step < limit):
        condition, *values = call.run(body, step, is_going, *states)
        is_going = _truth(condition, body.outputs[0])
        states = values[: len(states)]
        for scan, value in zip(scans, values[len(states) :], strict=True):
            scan.append(as_tensor(value))
        step += 1
    return (*states, *(torch.stack(scan) if scan else torch.zeros(0) for scan in scans))


def _state(call: Call, place: int) -> Any:
    """Return the first value of a variable of a loop: whole numbers stay numbers."""
    constant = call.constant(place)
    is_whole = constant is not None and not constant.is_floating_point()
    number = call.host(place) if is_whole else None
    return call.value(place) if number is None else number


@operator("SequenceInsert")
def _sequence_insert(call: Call) -> Any:
    sequence = list(call.value(0))
    place = call.number(2) if call.given(2) else len(sequence)
    return [*sequence[:place], call.tensor(1), *sequence[place:]]


@operator("SequenceErase")
def _sequence_erase(call: Call) -> Any:
    sequence = list(call.value(0))
    del sequence[call.number(1) if call.given(1) else -1]
    return sequence


register_operators(
    {
        "SequenceAt": lambda call: call.value(0)[call.number(1)],
        "SequenceConstruct": lambda call: [call.tensor(i) for i in range(call.count)],
        "SequenceEmpty": lambda call: [],
        "SequenceLength": lambda call: len(call.value(0)),
    }
)
