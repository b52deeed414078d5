"""The leaky rectifier with a slope per channel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.affine import Line, fit_lines
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Ints, Span
from chop.hw.design.component import Component, Cost, Memory, Parameter, Unary, precision, register
from chop.hw.design.samples import BYTE, COUNT, DOWN, NARROW, WIDE, codes, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.design.twin import ConstantsTwin, Twin
from chop.hw.lower import Lowerer, Value, formats, lowers
from chop.hw.lower.engine import pixel_shape
from chop.hw.lower.rows import constant
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, along, exact_op


@register
@dataclass(frozen=True, eq=False)
class PRelu(Unary):
    """x where x >= 0, weight * x elsewhere, with one weight per channel (the last dimension)."""

    weight: Ints
    weight_format: Fixed
    module = "fixed_prelu"

    def __post_init__(self) -> None:
        channels = self.source.shape[-1]
        if self.weight_format.frac_width < 0 or self.weight.size != channels:
            raise ConfigError(
                f"fixed_prelu: a weight per channel with 0 or more fractional bits, got "
                f"{self.weight.size} of {self.weight_format} for {channels} channels."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        frac = self.weight_format.frac_width
        growth = max(self.weight_format.width, frac)
        x = golden.wide(data[0], self.source.format.signed_width + growth)
        scaled = np.where(x < 0, x * self.weight, x << frac)
        return golden.cast(scaled, self.frac_width + frac, self.format)

    def parameters(self) -> Mapping[str, Parameter]:
        return {**super().parameters(), **precision("WEIGHT", self.weight_format)}

    def memories(self) -> tuple[Memory, ...]:
        lanes, width = self.source.lanes, self.weight_format.width
        words = pack_words(self.weight.reshape(-1, lanes), width)
        return (Memory("weight", tuple(words), width * lanes),)

    def twins(self) -> list[Twin]:
        return [ConstantsTwin(latency=1)]

    def cost(self) -> Cost:
        return super().cost() + Cost(multipliers=self.source.lanes)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(3, 8, lanes=4), BYTE, codes(BYTE, 8), BYTE),
            cls(stream(5, 3, number=WIDE), DOWN, codes(NARROW, 3), NARROW),
            cls(stream(4, 6, lanes=2, number=COUNT), BYTE, codes(BYTE, 6), BYTE),
            cls(stream(9, 1), WIDE, codes(Fixed(4, 9), 1), Fixed(4, 9)),
        ]


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_prelu")
def lower_prelu(low: Lowerer, node: fx.Node) -> Value:
    """A leaky rectifier with the shortest slopes that give the model's results."""
    value = low.operand(node)
    shape = value.shape
    if len(shape) > 1:
        value, shape = low.pixels(node, value), pixel_shape(shape)
    stream = low.stream(value)
    source = Stream(shape, math.gcd(stream.lanes, shape[-1]), stream.format)
    exact = _slopes(low, node, value)
    number = low.result_format(node, _span(source.format, exact), "its slopes are long fractions")
    found = fit_lines(tuple(map(Line, exact)), source.format, number, has_offset=False)
    slopes, frac = _codes(exact) if found is None else (found.slopes, found.frac_width)
    form = Span(min(*slopes, 0), max(*slopes, 0), frac).format
    if form.width > MAX_WIDTH:
        raise low.refuse(
            node,
            f"no slopes of {MAX_WIDTH} bits give its results",
            "Quantise its operand (data_in_width …) or its result (data_out_width …)",
        )
    component = PRelu(source, number, np.array(slopes, dtype=np.int64), form)
    return replace(value, wire=low.add(node, component, value))


def _slopes(low: Lowerer, node: fx.Node, value: Value) -> list[Fraction]:
    """Return the slope of each element of a pixel, or of a vector in the order of its stream."""
    tensor = constant(low, node, "weight")
    assert tensor is not None, f"node '{node.name}' has slopes"
    numbers = tensor.detach().double().cpu().numpy().reshape(-1)
    form = formats.operand_format(node, "weight")
    if form is not None:
        numbers = form.decode(form.encode(numbers))
    channels = value.shape[0]
    slopes = [Fraction(float(x)) for x in np.broadcast_to(numbers, (channels,))]
    return slopes if len(value.shape) > 1 else [slopes[k] for k in value.order]


def _codes(slopes: Sequence[Fraction]) -> tuple[tuple[int, ...], int]:
    """Return binary fractions as codes with one number of fractional bits."""
    frac = max(s.denominator.bit_length() - 1 for s in slopes)
    return tuple(int(s * 2**frac) for s in slopes), frac


def _span(number: Fixed, slopes: Sequence[Fraction]) -> Span | None:
    """Return the codes of exact results; None where they are too long for hardware."""
    exact, frac = _codes(slopes)
    ends = [number.high << frac, *(number.low * code for code in exact), 0]
    span = Span(min(ends), max(ends), number.frac_width + frac)
    return span if span.width <= MAX_WIDTH else None


@exact_op("prelu", "input weight")
def exact_prelu(a: Arguments) -> Exact:
    """max(x, 0) + weight * min(x, 0)."""
    x: Exact = a["input"]
    above, below = x.take(np.maximum(x.codes, 0)), x.take(np.minimum(x.codes, 0))
    return above + below * along(a["weight"], 1, len(x.shape))
