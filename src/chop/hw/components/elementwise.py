"""Components that work element by element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from chop.errors import ConfigError
from chop.hw import golden, twin
from chop.hw.component import (
    Component,
    Cost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
    sign_parameter,
)
from chop.hw.golden import Fixed, Ints, Span
from chop.hw.stream import Stream, pack_words


@dataclass(frozen=True)
class Unary(Component):
    """One element in, one out, through a skid buffer."""

    source: Stream
    format: Fixed
    """Of the output."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, format=self.format),))

    @property
    def frac_width(self) -> int:
        """Fractional bits of the input."""
        return self.source.format.frac_width

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **precision("DATA_IN_0", self.source.format),
            **result_precision(self.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def twins(self) -> list[twin.Twin]:
        return [twin.Queue(2)]

    def cost(self) -> Cost:
        return super().cost() + Cost(register_bits=2 * self.outputs[0].beat_width)


@register
@dataclass(frozen=True)
class Relu(Unary):
    """max(x, 0). The format stays."""

    module = "fixed_relu"

    def __post_init__(self) -> None:
        if not self.format.holds(self.source.format):
            raise ConfigError(
                f"fixed_relu: the format stays {self.source.format}, got {self.format}."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        return np.maximum(data[0], 0)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            **sign_parameter(self.source.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def twins(self) -> list[twin.Twin]:
        return []

    def cost(self) -> Cost:
        return Cost()


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

    @staticmethod
    def span(number: Fixed, slope: int, slope_frac: int) -> Span:
        """The codes of exact results."""
        ends = (number.low * slope, number.high << slope_frac)
        return Span(*ends, number.frac_width + slope_frac)


class HardUnary(Unary):
    """Pieces of straight lines with a sixth in them."""

    module = "fixed_hard_activation"
    is_swish: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.frac_width < 0:
            raise ConfigError(f"{self.name}: frac_width must be 0 or more, got {self.frac_width}.")
        super().__post_init__()

    def parameters(self) -> Mapping[str, Parameter]:
        return {**super().parameters(), "IS_SWISH": self.is_swish}

    def operand(self, x: Ints) -> Any:
        """Wide enough for a product with six."""
        return golden.wide(x, self.source.format.signed_width + self.frac_width + 4)

    def clipped(self, x: Any) -> Any:
        """min(max(x + 3, 0), 6) in the steps of x."""
        return np.clip(x + (3 << self.frac_width), 0, 6 << self.frac_width)


@register
@dataclass(frozen=True)
class HardSigmoid(HardUnary):
    """min(max(x + 3, 0), 6) / 6."""

    name = "fixed_hardsigmoid"

    def golden(self, *data: Ints) -> Ints:
        clipped = self.clipped(self.operand(data[0]))
        return golden.divide_cast(clipped, self.frac_width, 6, self.format)


@register
@dataclass(frozen=True)
class HardSwish(HardUnary):
    """x * min(max(x + 3, 0), 6) / 6."""

    name, is_swish = "fixed_hardswish", True

    def golden(self, *data: Ints) -> Ints:
        x = self.operand(data[0])
        dividend = x * self.clipped(x)
        return golden.divide_cast(dividend, 2 * self.frac_width, 6, self.format)


LUT_WIDTHS = range(1, 17)


@register
@dataclass(frozen=True)
class Lut(Unary):
    """Any function of one element, by table; exact by construction."""

    function: Callable[[npt.NDArray[np.float64]], npt.ArrayLike] = np.tanh
    module = "fixed_lut"

    def __post_init__(self) -> None:
        if self.source.format.width not in LUT_WIDTHS:
            raise ConfigError(
                f"fixed_lut: a table needs an input of {LUT_WIDTHS[0]} … {LUT_WIDTHS[-1]} bits, "
                f"got {self.source.format}."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        entries: Ints = self.table()[data[0] & (2**self.source.format.width - 1)]
        return entries

    def table(self) -> Ints:
        """Output codes, by input code read as an unsigned number."""
        width = self.source.format.width
        codes = np.arange(2**width)
        if self.source.format.is_signed:
            codes = np.where(codes >> (width - 1), codes - 2**width, codes)
        return self.format.encode(self.function(self.source.format.decode(codes)))

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "DATA_OUT_0_PRECISION_0": self.format.width,
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def memories(self) -> tuple[Memory, ...]:
        words = tuple(pack_words(self.table().reshape(-1, 1), self.format.width))
        return (Memory("table", words, self.format.width, is_streamed=False),)

    def twins(self) -> list[twin.Twin]:
        return [twin.Bracket(1)]


@register
@dataclass(frozen=True, eq=False)
class BatchNorm(Unary):
    """weight * x + bias with one pair of codes per channel (the last dimension)."""

    weight: Ints
    bias: Ints
    weight_format: Fixed
    bias_format: Fixed
    module = "fixed_batch_norm"

    def golden(self, *data: Ints) -> Ints:
        product_frac = self.frac_width + self.weight_format.frac_width
        frac = max(product_frac, self.bias_format.frac_width)
        bits = self.source.format.signed_width + self.weight_format.width + frac - product_frac
        bits = max(bits, self.bias_format.width + frac - self.bias_format.frac_width) + 1
        product = (golden.wide(data[0], bits) * self.weight) << (frac - product_frac)
        bias = golden.wide(self.bias, bits) << (frac - self.bias_format.frac_width)
        return golden.cast(product + bias, frac, self.format)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **super().parameters(),
            **precision("WEIGHT", self.weight_format),
            **precision("BIAS", self.bias_format),
        }

    def memories(self) -> tuple[Memory, ...]:
        return tuple(
            Memory(name, tuple(pack_words(codes.reshape(-1, lanes), width)), width * lanes)
            for name, codes, width, lanes in (
                ("weight", self.weight, self.weight_format.width, self.source.lanes),
                ("bias", self.bias, self.bias_format.width, self.source.lanes),
            )
        )

    def twins(self) -> list[twin.Twin]:
        return [twin.Constants()]

    def cost(self) -> Cost:
        return super().cost() + Cost(multipliers=self.source.lanes)


@dataclass(frozen=True)
class Binary(Component):
    """Two streams of the same shape, element by element."""

    left: Stream
    right: Stream
    format: Fixed
    module = "fixed_arithmetic"
    operation: ClassVar[int]
    """At this number of the module's parameter OPERATION."""

    def __post_init__(self) -> None:
        if (self.left.shape, self.left.lanes) != (self.right.shape, self.right.lanes):
            raise ConfigError(
                f"{self.name}: operands must have one shape and parallelism, "
                f"got {self.left} and {self.right}."
            )
        object.__setattr__(self, "inputs", (self.left, self.right))
        object.__setattr__(self, "outputs", (replace(self.left, format=self.format),))

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **precision("DATA_IN_0", self.left.format),
            **precision("DATA_IN_1", self.right.format),
            **result_precision(self.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.left.lanes,
            "OPERATION": self.operation,
        }

    def golden(self, *data: Ints) -> Ints:
        exact = self.span(self.left.format, self.right.format)
        a, b = (golden.wide(x, exact.width + 1) for x in data)
        return golden.cast(self.exact(a, b), exact.frac_width, self.format)

    @abstractmethod
    def exact(self, a: Any, b: Any) -> Any:
        """The result before the cast."""

    @abstractmethod
    def span(self, left: Fixed, right: Fixed) -> Span:
        """The codes of exact results for operands of these formats."""

    def twins(self) -> list[twin.Twin]:
        return [twin.Join(2)]

    def cost(self) -> Cost:
        return Cost(register_bits=2 * self.outputs[0].beat_width)


@register
@dataclass(frozen=True)
class Add(Binary):
    """left + alpha * 2**-alpha_frac * right."""

    alpha: int = 1
    alpha_frac: int = 0
    sign: ClassVar[int] = 1
    name, operation = "fixed_add", 0

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.alpha_frac < 0:
            raise ConfigError(
                f"{self.name}: alpha and alpha_frac must be 0 or more, "
                f"got {self.alpha} and {self.alpha_frac}."
            )
        super().__post_init__()

    def exact(self, a: Any, b: Any) -> Any:
        shifts = self._shifts(self.left.format, self.right.format)
        return (a << shifts[0]) + self.sign * ((b * self.alpha) << shifts[1])

    def _shifts(self, left: Fixed, right: Fixed) -> tuple[int, int]:
        """What brings both operands to the finer of their steps."""
        fracs = (left.frac_width, right.frac_width + self.alpha_frac)
        return max(fracs) - fracs[0], max(fracs) - fracs[1]

    def span(self, left: Fixed, right: Fixed) -> Span:
        shifts = self._shifts(left, right)
        ends = [self.sign * (end * self.alpha << shifts[1]) for end in (right.low, right.high)]
        low, high = left.low << shifts[0], left.high << shifts[0]
        return Span(low + min(ends), high + max(ends), left.frac_width + shifts[0])

    def parameters(self) -> Mapping[str, Parameter]:
        if (self.alpha, self.alpha_frac) == (1, 0):
            return super().parameters()
        return {**super().parameters(), "ALPHA": self.alpha, "ALPHA_FRAC": self.alpha_frac}


@register
@dataclass(frozen=True)
class Sub(Add):
    """left - alpha * 2**-alpha_frac * right."""

    sign = -1
    name, operation = "fixed_sub", 1


@register
@dataclass(frozen=True)
class Mul(Binary):
    """Product."""

    name, operation = "fixed_mul", 2

    def exact(self, a: Any, b: Any) -> Any:
        return a * b

    def span(self, left: Fixed, right: Fixed) -> Span:
        ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
        return Span(min(ends), max(ends), left.frac_width + right.frac_width)

    def cost(self) -> Cost:
        return super().cost() + Cost(multipliers=self.left.lanes)
