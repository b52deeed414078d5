"""Common parts of the lowerings of ops over rows: softmax and the norms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import Component
from chop.hw.design.stream import Stream
from chop.hw.lower.engine import Lowerer, Value, row_major
from chop.hw.lower.supported import attribute
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import node_module
from chop.nn.quantized.integer_calls import node_arithmetic


def require_integers(low: Lowerer, node: fx.Node) -> None:
    """Raise for an op that the model computes in floating point: hardware differs."""
    if node_arithmetic(node) != "integer":
        raise low.refuse(
            node,
            "it is computed in floating point, which hardware has not",
            "Quantise it to 'integer' with data_in, data_out and arithmetic = 'integer'",
        )


def row_operand(low: Lowerer, node: fx.Node) -> tuple[Value, Stream]:
    """Return the operand of `node`, streamed row by row, and its stream in whole rows.

    A view changes the shape of a tensor and not its stream: the stream has the rows of the view,
    and no more lanes than a row has elements.
    """
    value = low.operand(node)
    value = low.arrange(node, value, row_major(value.shape), value.shape)
    stream = low.stream(value)
    lanes = math.gcd(stream.lanes, value.shape[-1])
    return value, Stream(value.shape, lanes, stream.format)


def add_rows(low: Lowerer, node: fx.Node, value: Value, component: Component) -> Value:
    """Add the stage of a node whose result has the shape of its operand."""
    return replace(value, wire=low.add(node, component, value))


def made(low: Lowerer, node: fx.Node, component: Any, *arguments: Any) -> Component:
    """Return the component; raise for the node if it cannot be made."""
    try:
        built: Component = component(*arguments)
    except ConfigError as error:
        raise low.refuse(
            node, str(error).rstrip("."), "Quantise its operand: data_in_width"
        ) from error
    return built


def constant(low: Lowerer, node: fx.Node, name: str) -> Tensor | None:
    """Return a parameter: of the module, or the attribute that the function is called with."""
    if node.op == "call_module":
        return getattr(node_module(node), name, None)
    source = dict(named_arguments(node)).get(name)
    if source is None:
        return None
    if not isinstance(source, fx.Node) or source.op != "get_attr":
        raise low.refuse(node, f"its {name} is computed", "Allowed: parameters of the model")
    return attribute(low.graph, source)  # type: ignore[no-any-return]


def codes_of(tensor: Tensor, number: Fixed) -> Ints:
    """Return the codes of a parameter."""
    return number.encode(tensor.detach().double().cpu().numpy().reshape(-1))
