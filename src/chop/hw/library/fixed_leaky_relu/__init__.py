"""The leaky rectifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.affine import Line, fit_lines
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Ints, Span
from chop.hw.design.component import Component, Parameter, Unary, register
from chop.hw.design.samples import BYTE, COUNT, DOWN, NARROW, WIDE, stream
from chop.hw.design.stream import Stream
from chop.hw.design.twin import Bracket, Twin
from chop.hw.lower import Lowerer, Value, lowers, unary
from chop.hw.reference.exact import Exact, constant
from chop.hw.reference.exact_ops import Arguments, exact_op


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
        growth = max(self.slope.bit_length(), self.slope_frac) + 1
        x = golden.wide(data[0], self.source.format.signed_width + growth)
        scaled = np.where(x < 0, x * self.slope, x << self.slope_frac)
        return golden.cast(scaled, self.frac_width + self.slope_frac, self.format)

    def parameters(self) -> Mapping[str, Parameter]:
        slope = {"NEGATIVE_SLOPE": self.slope, "NEGATIVE_SLOPE_FRAC": self.slope_frac}
        return {**super().parameters(), **slope}

    def twins(self) -> list[Twin]:
        return [Bracket(1)]

    @staticmethod
    def span(number: Fixed, slope: int, slope_frac: int) -> Span:
        """The codes of exact results."""
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


def dyadic(low: Lowerer, node: fx.Node, name: str, default: float) -> tuple[int, int]:
    """A setting that is a number, exactly: numerator and the power of two below it."""
    given = low.setting(node, name, default)
    exact = Fraction(given)
    if exact < 0 or exact.numerator.bit_length() > MAX_WIDTH:
        raise low.refuse(node, f"{name} = {given}", f"Allowed: 0 or more, of {MAX_WIDTH} bits")
    return exact.numerator, exact.denominator.bit_length() - 1


@lowers("fixed_leaky_relu")
def lower_leaky_relu(low: Lowerer, node: fx.Node) -> Value:
    """A leaky rectifier with the shortest slope that gives the model's results."""
    slope, frac = dyadic(low, node, "negative_slope", 0.01)

    def make(source: Stream) -> Component:
        number = low.result_format(node, LeakyRelu.span(source.format, slope, frac))
        line = Line(Fraction(slope, 1 << frac))
        found = fit_lines((line,), source.format, number, has_offset=False)
        if found is None or not source.format.is_signed:
            return LeakyRelu(source, number, slope, frac)
        return LeakyRelu(source, number, found.slopes[0], found.frac_width)

    return unary(low, node, make)


@exact_op("leaky_relu", "input negative_slope inplace")
def exact_leaky_relu(a: Arguments) -> Exact:
    """max(x, 0) + slope * min(x, 0)."""
    x: Exact = a["input"]
    above, below = x.take(np.maximum(x.codes, 0)), x.take(np.minimum(x.codes, 0))
    return above + below * constant(a.get("negative_slope", 0.01))
