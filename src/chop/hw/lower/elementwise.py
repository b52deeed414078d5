"""Ops that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.hw.affine import Line, fit_lines
from chop.hw.component import Component
from chop.hw.components import Add, HardSigmoid, HardSwish, LeakyRelu, Lut, Mul, Relu, Sub
from chop.hw.components.elementwise import LUT_WIDTHS, Binary
from chop.hw.golden import MAX_WIDTH, Fixed
from chop.hw.lower.engine import Lowerer, Value, lowers
from chop.hw.stream import Stream
from chop.ir.ops import node_module


def unary(low: Lowerer, node: fx.Node, make: Callable[[Stream], Component]) -> Value:
    """The component that `make` gives for the stream of the only operand."""
    value = low.operand(node)
    return replace(value, wire=low.add(node, make(low.stream(value)), value))


@lowers("fixed_relu")
def _relu(low: Lowerer, node: fx.Node) -> Value:
    return unary(low, node, lambda source: Relu(source, source.format))


def dyadic(low: Lowerer, node: fx.Node, name: str, default: float) -> tuple[int, int]:
    """A setting that is a number, exactly: numerator and the power of two below it."""
    given = low.setting(node, name, default)
    exact = Fraction(given)
    if exact < 0 or exact.numerator.bit_length() > MAX_WIDTH:
        raise low.refuse(node, f"{name} = {given}", "Allowed: 0 or more, of 62 bits")
    return exact.numerator, exact.denominator.bit_length() - 1


@lowers("fixed_leaky_relu")
def _leaky_relu(low: Lowerer, node: fx.Node) -> Value:
    slope, frac = dyadic(low, node, "negative_slope", 0.01)

    def make(source: Stream) -> Component:
        number = low.result_format(node, LeakyRelu.span(source.format, slope, frac))
        line = Line(Fraction(slope, 1 << frac))
        # a shorter slope, where it gives the same results
        found = fit_lines((line,), source.format, number, has_offset=False)
        if found is None or not source.format.is_signed:
            return LeakyRelu(source, number, slope, frac)
        return LeakyRelu(source, number, found.slopes[0], found.frac_width)

    return unary(low, node, make)


def _hard(low: Lowerer, node: fx.Node, kind: type[HardSigmoid] | type[HardSwish]) -> Value:
    number = low.result_format(node, None, "a sixth is no binary fraction")
    value = low.operand(node)
    steps = low.stream(value).format
    if steps.frac_width < 0:  # three and six are no multiples of its step
        whole = Fixed(steps.width - steps.frac_width, 0, steps.is_signed)
        value = low.cast(f"{node.name}_whole", value, whole)
    return replace(value, wire=low.add(node, kind(low.stream(value), number), value))


@lowers("fixed_hardsigmoid")
def _hardsigmoid(low: Lowerer, node: fx.Node) -> Value:
    return _hard(low, node, HardSigmoid)


@lowers("fixed_hardswish")
def _hardswish(low: Lowerer, node: fx.Node) -> Value:
    return _hard(low, node, HardSwish)


@lowers("fixed_lut")
def _lut(low: Lowerer, node: fx.Node) -> Value:
    number = low.result_format(node)

    def make(source: Stream) -> Component:
        if source.format.width not in LUT_WIDTHS:
            raise low.refuse(
                node,
                f"an operand of {source.format.width} bits",
                f"Allowed: up to {LUT_WIDTHS[-1]}, for a table. Quantise it: data_in_width",
            )
        return Lut(source, number, _function(node))

    return unary(low, node, make)


def _function(node: fx.Node) -> Callable[[Any], Any]:
    """The node's own torch function on NumPy doubles."""

    def call(x: Any) -> Any:
        tensor = torch.from_numpy(np.asarray(x, dtype=np.float64))
        with torch.no_grad():
            return _apply(node, tensor).numpy()

    return call


def _apply(node: fx.Node, x: Tensor) -> Any:
    if node.op == "call_module":
        return _plain(node_module(node))(x)
    rest = [a for a in node.args if not isinstance(a, fx.Node)]
    named = {k: v for k, v in node.kwargs.items() if not isinstance(v, fx.Node)}
    if node.op == "call_method":
        return getattr(x, str(node.target))(*rest, **named)
    return node.target(x, *rest, **named)  # type: ignore[operator]


def _plain(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The forward of the torch layer that a quantised twin is derived from."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith("torch.nn"):
            return lambda x: cls.forward(module, x)  # type: ignore[attr-defined]
    return module


def _binary(low: Lowerer, node: fx.Node, make: Callable[[Stream, Stream, Fixed], Binary]) -> Value:
    if len(low.operands(node)) < 2:
        raise low.refuse(node, "a constant operand", "Allowed: two tensors of the graph")
    left, right = low.operand(node, 0), low.operand(node, 1)
    if left.shape != right.shape:
        raise low.refuse(node, f"shapes {left.shape} and {right.shape}", "Allowed: equal shapes")
    a = low.stream(left)
    right = low.arrange(node, right, left.order, a.shape)
    b = replace(a, format=low.stream(right).format)
    any_format = Fixed(8)
    exact = make(a, b, any_format).span(a.format, b.format)
    component = make(a, b, low.result_format(node, exact))
    return replace(left, wire=low.add(node, component, left, right))


def _sum(low: Lowerer, node: fx.Node, sign: int) -> Value:
    """data_in_0 + sign * alpha * data_in_1."""
    if getattr(node.target, "__name__", node.target) == "rsub":
        raise low.refuse(node, "operands in the order of rsub", "Allowed: sub")
    given = low.setting(node, "alpha", 1)
    exact = Fraction(given)
    if abs(exact.numerator).bit_length() > MAX_WIDTH:
        raise low.refuse(node, f"alpha = {given}", f"Allowed: numbers of {MAX_WIDTH} bits")
    kind = Sub if sign * exact < 0 else Add
    alpha, frac = abs(exact.numerator), exact.denominator.bit_length() - 1
    return _binary(low, node, lambda a, b, out: kind(a, b, out, alpha, frac))


@lowers("fixed_add")
def _add(low: Lowerer, node: fx.Node) -> Value:
    return _sum(low, node, 1)


@lowers("fixed_sub")
def _sub(low: Lowerer, node: fx.Node) -> Value:
    return _sum(low, node, -1)


@lowers("fixed_mul")
def _mul(low: Lowerer, node: fx.Node) -> Value:
    return _binary(low, node, Mul)
