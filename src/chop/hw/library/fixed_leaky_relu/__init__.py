"""Leaky rectifiers: LeakyReLU with one slope, PReLU with a slope per channel."""

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
from chop.hw.design.component import Component, ComponentCost, Memory, Parameter, Unary, register
from chop.hw.design.cycle_model import Bracket, ConstantsTwin, Twin
from chop.hw.design.samples import BYTE, COUNT, DOWN, NARROW, WIDE, codes, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.lower import Lowerer, Value, fixed_formats, lowers, unary
from chop.hw.lower.engine import pixel_shape
from chop.hw.lower.row_ops import constant as constant_of
from chop.hw.reference.exact import Exact, constant
from chop.hw.reference.exact_ops import Arguments, along, exact_op


@register
@dataclass(frozen=True)
class LeakyRelu(Unary):
    """x where x >= 0, `slope` * 2**-slope_frac * x elsewhere."""

    slope: int = 3
    slope_frac: int = 8
    module = "fixed_leaky_relu"

    def __post_init__(self) -> None:
        if self.slope < 0 or self.slope_frac < 0:
            raise ConfigError(
                f"fixed_leaky_relu: slope and slope_frac must be 0 or more, "
                f"got {self.slope} and {self.slope_frac}."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        return _rectified(self, data[0], self.slope, self.slope.bit_length() + 1, self.slope_frac)

    def parameters(self) -> Mapping[str, Parameter]:
        slope = {"NEGATIVE_SLOPE": self.slope, "NEGATIVE_SLOPE_FRAC": self.slope_frac}
        return {**super().parameters(), "HAS_WEIGHT": False, **slope}

    def twins(self) -> list[Twin]:
        return [Bracket(1)]

    @staticmethod
    def span(number: Fixed, slope: int, slope_frac: int) -> Span:
        """Return the range of exact results."""
        ends = (number.low * slope, number.high << slope_frac)
        return Span(*ends, number.frac_width + slope_frac)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(64, lanes=4), BYTE),
            cls(stream(64, lanes=2, number=WIDE), BYTE, slope=1, slope_frac=2),
            cls(stream(64, number=NARROW), WIDE, slope=3, slope_frac=0),
            cls(stream(64, number=COUNT), DOWN),
            cls(stream(64), COUNT, slope=5764607523034235, slope_frac=59),
        ]


@register
@dataclass(frozen=True, eq=False)
class PRelu(Unary):
    """x where x >= 0, weight * x elsewhere, with one weight per channel (the last dimension)."""

    weight: Ints
    weight_format: Fixed
    module, name = "fixed_leaky_relu", "fixed_prelu"

    def __post_init__(self) -> None:
        channels = self.source.shape[-1]
        if self.weight_format.frac_width < 0 or self.weight.size != channels:
            raise ConfigError(
                f"fixed_prelu: a weight per channel with 0 or more fractional bits, got "
                f"{self.weight.size} of {self.weight_format} for {channels} channels."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        number = self.weight_format
        return _rectified(self, data[0], self.weight, number.width, number.frac_width)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **super().parameters(),
            "HAS_WEIGHT": True,
            "WEIGHT_PRECISION_0": self.weight_format.width,
            "NEGATIVE_SLOPE_FRAC": self.weight_format.frac_width,
        }

    def memories(self) -> tuple[Memory, ...]:
        lanes, width = self.source.lanes, self.weight_format.width
        words = pack_words(self.weight.reshape(-1, lanes), width)
        return (Memory("weight", tuple(words), width * lanes),)

    def twins(self) -> list[Twin]:
        return [ConstantsTwin(latency=1)]

    def cost(self) -> ComponentCost:
        return super().cost() + ComponentCost(multipliers=self.source.lanes)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(3, 8, lanes=4), BYTE, codes(BYTE, 8), BYTE),
            cls(stream(5, 3, number=WIDE), DOWN, codes(NARROW, 3), NARROW),
            cls(stream(4, 6, lanes=2, number=COUNT), BYTE, codes(BYTE, 6), BYTE),
            cls(stream(9, 1), WIDE, codes(Fixed(4, 9), 1), Fixed(4, 9)),
        ]


def _rectified(layer: Unary, data: Ints, slopes: Ints | int, width: int, frac: int) -> Ints:
    """Return the output codes for slopes of `width` bits, `frac` of them fractional."""
    x = golden.wide(data, layer.source.format.signed_width + max(width, frac))
    scaled = np.where(x < 0, x * slopes, x << frac)
    return golden.cast(scaled, layer.frac_width + frac, layer.format)


def dyadic(low: Lowerer, node: fx.Node, name: str, default: float) -> tuple[int, int]:
    """Return a numeric setting exactly, as numerator and the power of two below it."""
    value = low.setting(node, name, default)
    exact = Fraction(value)
    if exact < 0 or exact.numerator.bit_length() > MAX_WIDTH:
        raise low.refuse(node, f"{name} = {value}", f"Allowed: 0 or more, of {MAX_WIDTH} bits")
    return exact.numerator, exact.denominator.bit_length() - 1


@lowers("fixed_leaky_relu")
def lower_leaky_relu(low: Lowerer, node: fx.Node) -> Value:
    """Add a leaky rectifier with the shortest slope that gives the model's results."""
    slope, frac = dyadic(low, node, "negative_slope", 0.01)

    def make(source: Stream) -> Component:
        number = low.result_format(node, LeakyRelu.span(source.format, slope, frac))
        line = Line(Fraction(slope, 1 << frac))
        short = fit_lines((line,), source.format, number, has_offset=False)
        if short is None or not source.format.is_signed:
            return LeakyRelu(source, number, slope, frac)
        return LeakyRelu(source, number, short.slopes[0], short.frac_width)

    return unary(low, node, make)


@lowers("fixed_prelu")
def lower_prelu(low: Lowerer, node: fx.Node) -> Value:
    """Add a leaky rectifier with the shortest slopes that give the model's results."""
    value = low.operand(node)
    shape = value.shape
    if len(shape) > 1:
        value, shape = low.pixels(node, value), pixel_shape(shape)
    stream = low.stream(value)
    source = Stream(shape, math.gcd(stream.lanes, shape[-1]), stream.format)
    exact = _slopes(low, node, value)
    number = low.result_format(node, _span(source.format, exact), "its slopes are long fractions")
    short = fit_lines(tuple(map(Line, exact)), source.format, number, has_offset=False)
    slopes, frac = _codes(exact) if short is None else (short.slopes, short.frac_width)
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
    tensor = constant_of(low, node, "weight")
    assert tensor is not None, f"node '{node.name}' has slopes"
    numbers = tensor.detach().double().cpu().numpy().reshape(-1)
    form = fixed_formats.operand_format(node, "weight")
    if form is not None:
        numbers = form.decode(form.encode(numbers))
    slopes = [Fraction(float(x)) for x in np.broadcast_to(numbers, value.shape[:1])]
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


@exact_op("leaky_relu", "input negative_slope inplace")
def exact_leaky_relu(a: Arguments) -> Exact:
    """Return max(x, 0) + slope * min(x, 0)."""
    return _exact_rectified(a["input"], constant(a.get("negative_slope", 0.01)))


@exact_op("prelu", "input weight")
def exact_prelu(a: Arguments) -> Exact:
    """Return max(x, 0) + weight * min(x, 0)."""
    return _exact_rectified(a["input"], along(a["weight"], 1, len(a["input"].shape)))


def _exact_rectified(x: Exact, slope: Exact) -> Exact:
    above, below = x.take(np.maximum(x.codes, 0)), x.take(np.minimum(x.codes, 0))
    return above + below * slope
