"""Hard activations: hardsigmoid and hardswish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import Component, ComponentCost, Parameter, Unary, register
from chop.hw.design.cycle_model import Bracket, Twin
from chop.hw.design.samples import BYTE, COUNT, DOWN, NARROW, WIDE, stream
from chop.hw.library.fixed_divide import Division
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.reference.exact import Exact, constant
from chop.hw.reference.exact_ops import Arguments, exact_op


class HardUnary(Unary):
    """Base of both: min(max(x + 3, 0), 6), and a division by six."""

    module = "fixed_hard_activation"
    is_swish: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.frac_width < 0:
            raise ConfigError(f"{self.name}: frac_width must be 0 or more, got {self.frac_width}.")
        super().__post_init__()

    def parameters(self) -> Mapping[str, Parameter]:
        own = {"IS_SWISH": self.is_swish, "HAS_PARTS": self.division.parts > 1}
        return {**super().parameters(), **own}

    @property
    def division(self) -> Division:
        """Division by six."""
        width = max(self.source.format.signed_width, self.frac_width + 4) + 1
        frac = self.frac_width
        if self.is_swish:
            width, frac = self.source.format.signed_width + self.frac_width + 4, 2 * frac
        return Division(width, frac, [6], self.format)

    def twins(self) -> list[Twin]:
        return [Bracket((2 if self.is_swish else 1) + self.division.latency)]

    def cost(self) -> ComponentCost:
        each = self.division.multipliers + self.is_swish
        return super().cost() + ComponentCost(multipliers=each * self.source.lanes)

    def operand(self, x: Ints) -> Any:
        """Return the codes in a type wide enough for a product with six."""
        return golden.wide(x, self.source.format.signed_width + self.frac_width + 4)

    def clipped(self, x: Any) -> Any:
        """Return min(max(x + 3, 0), 6) in the steps of x."""
        return np.clip(x + (3 << self.frac_width), 0, 6 << self.frac_width)


@register
@dataclass(frozen=True)
class HardSigmoid(HardUnary):
    """min(max(x + 3, 0), 6) / 6."""

    name = "fixed_hardsigmoid"

    def golden(self, *data: Ints) -> Ints:
        clipped = self.clipped(self.operand(data[0]))
        return golden.divide_cast(clipped, self.frac_width, 6, self.format)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(128, lanes=4), BYTE),
            cls(stream(128, lanes=2, number=WIDE), Fixed(8, 7)),
            cls(stream(128, number=NARROW), Fixed(6, 2)),
            cls(stream(128, number=COUNT), Fixed(6, 4, is_signed=False, rounding="floor")),
            cls(stream(64, number=Fixed(9, 7)), Fixed(4, 1, rounding="nearest_away")),
        ]


@register
@dataclass(frozen=True)
class HardSwish(HardUnary):
    """x * min(max(x + 3, 0), 6) / 6."""

    name, is_swish = "fixed_hardswish", True

    def golden(self, *data: Ints) -> Ints:
        x = self.operand(data[0])
        dividend = x * self.clipped(x)
        return golden.divide_cast(dividend, 2 * self.frac_width, 6, self.format)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(128, lanes=4), BYTE),
            cls(stream(128, lanes=2, number=WIDE), Fixed(8, 4)),
            cls(stream(128, number=Fixed(6, 0)), Fixed(6, 2)),
            cls(stream(128, number=COUNT), DOWN),
            cls(stream(128, number=WIDE), Fixed(5, -2, rounding="toward_zero")),
            cls(stream(64, number=Fixed(24, 16)), Fixed(20, 14)),
        ]


@lowers("fixed_hardsigmoid")
def lower_hardsigmoid(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a hard sigmoid of the operand."""
    return _lower(low, node, HardSigmoid)


@lowers("fixed_hardswish")
def lower_hardswish(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a hard swish of the operand."""
    return _lower(low, node, HardSwish)


def _lower(low: Lowerer, node: fx.Node, kind: type[HardSigmoid] | type[HardSwish]) -> Value:
    number = low.result_format(node, None, "a sixth is no binary fraction")
    value = low.operand(node)
    steps = low.stream(value).format
    if steps.frac_width < 0:  # three and six are no multiples of its step
        whole = Fixed(steps.width - steps.frac_width, 0, steps.is_signed)
        value = low.cast(f"{node.name}_whole", value, whole)
    return replace(value, wire=low.add(node, kind(low.stream(value), number), value))


@exact_op("hardsigmoid", "input inplace")
def exact_hardsigmoid(a: Arguments) -> Exact:
    """Return min(max(x + 3, 0), 6) / 6."""
    return _between_0_and_6(a["input"]) / 6


@exact_op("hardswish", "input inplace")
def exact_hardswish(a: Arguments) -> Exact:
    """Return x * min(max(x + 3, 0), 6) / 6."""
    x: Exact = a["input"]
    return x * _between_0_and_6(x) / 6


def _between_0_and_6(x: Exact) -> Exact:
    """min(max(x + 3, 0), 6)."""
    moved = x + constant(3.0)
    six = moved.divisor * 6 << moved.frac_width
    return moved.take(np.minimum(np.maximum(moved.codes, 0), six))
