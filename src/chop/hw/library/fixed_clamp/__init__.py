"""Numbers clipped to bounds: clamp, ReLU6, hard tanh, and the larger or smaller of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Ints, Span
from chop.hw.design.component import Component, Parameter, Unary, register
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, stream
from chop.hw.lower import Lowerer, Value, fixed_formats, lowers
from chop.hw.lower.constants import parameter, scalar_operand
from chop.hw.reference.exact import Exact, constant
from chop.hw.reference.exact_ops import ARGUMENTS, Arguments, exact_op
from chop.ir.ops import node_module

Bounds = tuple[float | None, float | None]
"""Least and largest result; None without a bound."""


@register
@dataclass(frozen=True)
class Clamp(Unary):
    """min(max(x, least), most), cast to `format`. A bound may be any finite double, or None."""

    least: float | None = None
    most: float | None = None
    module = "fixed_clamp"

    def __post_init__(self) -> None:
        bounds = [b for b in (self.least, self.most) if b is not None]
        if not bounds or not all(map(math.isfinite, bounds)) or bounds != sorted(bounds):
            raise ConfigError(
                f"fixed_clamp: bounds {self.least} and {self.most}. Allowed: one or two finite "
                f"numbers, the smaller one first."
            )
        super().__post_init__()

    def _stays(self) -> tuple[int, int]:
        """Return the least and largest input code that no bound replaces.

        Bounds beyond the format are moved to a code next to it.
        """
        number, unit = self.source.format, Fraction(2) ** self.frac_width
        low = number.low if self.least is None else math.ceil(Fraction(self.least) * unit)
        high = number.high if self.most is None else math.floor(Fraction(self.most) * unit)
        low = min(max(low, number.low), number.high + 1)
        return low, min(max(high, low - 1, number.low - 1), number.high)

    def _codes(self) -> tuple[int, int]:
        """Return the output codes of both bounds; 0 without one."""
        least, most = (self.format.encode(b or 0.0).item() for b in (self.least, self.most))
        return int(least), int(most)

    def golden(self, *data: Ints) -> Ints:
        (low_at, high_at), (low, high) = self._stays(), self._codes()
        cast = golden.cast(data[0], self.frac_width, self.format)
        return np.where(data[0] < low_at, low, np.where(data[0] > high_at, high, cast))

    def parameters(self) -> Mapping[str, Parameter]:
        (low_at, high_at), (low, high) = self._stays(), self._codes()
        bounds = {"LOW_AT": low_at, "HIGH_AT": high_at, "LOW": low, "HIGH": high}
        return {**super().parameters(), **{k: (v % (1 << 64),) for k, v in bounds.items()}}

    @staticmethod
    def span(number: Fixed, bounds: Bounds) -> Span | None:
        """Return the range of exact results; None if a bound needs too many bits."""
        exact = [Fraction(b) for b in bounds if b is not None]
        frac = max(number.frac_width, *(b.denominator.bit_length() - 1 for b in exact))
        grown = number.low << frac - number.frac_width, number.high << frac - number.frac_width
        if frac > MAX_WIDTH or max(map(abs, exact)) >= 2 ** (MAX_WIDTH - frac):
            return None
        at = [None if b is None else int(Fraction(b) * 2**frac) for b in bounds]
        ends = [_between(code, at[0], at[1]) for code in grown]
        return Span(ends[0], ends[1], frac)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(64, lanes=4), BYTE, 0.0, 6.0),
            cls(stream(64, lanes=2, number=WIDE), BYTE, -0.4, None),
            cls(stream(64, number=NARROW), WIDE, None, 0.3),
            cls(stream(64, number=COUNT), DOWN, 1.3, 2.7),
            cls(stream(64, number=WIDE), COUNT, -1.0, 1.0),
            cls(stream(16), BYTE, -100.0, 100.0),  # both beyond the format
            cls(stream(16), BYTE, 20.0, 30.0),  # all numbers below
            cls(stream(16), Fixed(6, 2, rounding="nearest_away"), -30.0, -20.0),  # all above
            cls(stream(8, number=BIT), NARROW, -0.5, -0.5),
        ]


def _between(code: int, low: int | None, high: int | None) -> int:
    at_least = code if low is None else max(code, low)
    return at_least if high is None else min(at_least, high)


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_clamp", is_monotone=True)
def lower_clamp(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a comparison with one or two constants."""
    least, most = _bounds(low, node)
    if least is None and most is None:
        raise low.refuse(node, "no bound", "Allowed: a least or largest number, or both")
    if least is not None and most is not None:
        least = min(least, most)  # torch applies the upper bound last

    operands = low.operands(node)
    value = low.operand(node, next(k for k, each in enumerate(operands) if each in low.values))
    source = low.stream(value)
    exact = Clamp.span(source.format, (least, most))
    number = low.result_format(node, exact, f"bounds {least} and {most}")
    return replace(value, wire=low.add(node, Clamp(source, number, least, most), value))


FIXED = {"relu6": (0.0, 6.0)}
"""Bounds of ops without settings."""


def _bounds(low: Lowerer, node: fx.Node) -> Bounds:
    """Return the bounds of any op of this component."""
    name = low.op(node).name
    if name in ("maximum", "minimum"):
        bound = _other(low, node)
        return (bound, None) if name == "maximum" else (None, bound)
    if name in FIXED:
        return FIXED[name]
    if node.op == "call_module":
        module: Any = node_module(node)
        return float(module.min_val), float(module.max_val)
    names, places = ARGUMENTS[name], node.args
    arguments = {**dict(zip(names, places, strict=False)), **node.kwargs}
    least, most = (
        _bound(low, node, [arguments.get(key) for key in keys])
        for keys in (("min", "min_val"), ("max", "max_val"))
    )
    if name == "hardtanh":
        return (-1.0 if least is None else least), (1.0 if most is None else most)
    return least, most


def _bound(low: Lowerer, node: fx.Node, values: Sequence[Any]) -> float | None:
    """Return the only one of `values` that is a number; None without one, or for infinity."""
    value = next((each for each in values if each is not None), None)
    if value is not None and not isinstance(value, int | float):
        raise low.refuse(node, "a bound that is a tensor", "Allowed: plain numbers")
    return None if value is None or math.isinf(value) else float(value)


def _other(low: Lowerer, node: fx.Node) -> float:
    """Return the number that a tensor is compared with: plain, or all elements of a parameter."""
    scalar = scalar_operand(low, node)
    if scalar is not None:
        return scalar[0]
    places = [k for k, each in enumerate(low.operands(node)) if each not in low.values]
    tensor = parameter(low, low.operands(node)[places[0]]) if len(places) == 1 else None
    numbers = set() if tensor is None else {*tensor.detach().double().reshape(-1).tolist()}
    if len(numbers) != 1:
        what = "operands that are both computed, or a constant of several numbers"
        raise low.refuse(node, what, "Allowed: a tensor and one number")
    number_format = fixed_formats.operand_format(node, f"data_in_{places[0]}")
    (bound,) = numbers
    if number_format is not None:
        bound = float(number_format.decode(number_format.encode(bound)))
    return float(bound)


# -- by definition ---------------------------------------------------------------------------------


def _at_least(x: Exact, bound: Exact) -> Exact:
    """Return the larger of each number and `bound`."""
    return _chosen(x, bound, np.maximum)


def _at_most(x: Exact, bound: Exact) -> Exact:
    """Return the smaller of each number and `bound`."""
    return _chosen(x, bound, np.minimum)


def _chosen(x: Exact, bound: Exact, choose: Any) -> Exact:
    total = x + bound  # at a scale of both
    left, right = (each.at(total.frac_width, total.divisor) for each in (x, bound))
    return total.take(choose(left, right))


@exact_op("maximum", "input other")
def exact_maximum(a: Arguments) -> Exact:
    """Return the larger of two numbers."""
    return _at_least(a["input"], a["other"])


@exact_op("minimum", "input other")
def exact_minimum(a: Arguments) -> Exact:
    """Return the smaller of two numbers."""
    return _at_most(a["input"], a["other"])


@exact_op("relu6", "input inplace")
def exact_relu6(a: Arguments) -> Exact:
    """Return min(max(x, 0), 6)."""
    return _at_most(_at_least(a["input"], constant(0.0)), constant(6.0))


@exact_op("clamp", "input min max")
def exact_clamp(a: Arguments) -> Exact:
    """Return min(max(x, min), max)."""
    return _clipped(a["input"], a.get("min"), a.get("max"))


@exact_op("clamp_min", "input min")
def exact_clamp_min(a: Arguments) -> Exact:
    """Return max(x, min)."""
    return _clipped(a["input"], a["min"], None)


@exact_op("clamp_max", "input max")
def exact_clamp_max(a: Arguments) -> Exact:
    """Return min(x, max)."""
    return _clipped(a["input"], None, a["max"])


@exact_op("hardtanh", "input min_val max_val inplace")
def exact_hardtanh(a: Arguments) -> Exact:
    """Return min(max(x, min_val), max_val)."""
    return _clipped(a["input"], a.get("min_val", -1.0), a.get("max_val", 1.0))


def _clipped(x: Exact, least: float | None, most: float | None) -> Exact:
    if least is not None and math.isfinite(least):
        x = _at_least(x, constant(least))
    return x if most is None or math.isinf(most) else _at_most(x, constant(most))
