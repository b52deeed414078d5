"""Sums, differences and products of two streams, element by element."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.affine import Line
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Ints, Span
from chop.hw.design.clock import DEFAULT_MHZ, operand_registers
from chop.hw.design.component import (
    LARGEST_IN_LOGIC,
    Component,
    ComponentCost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.design.cycle_model import ConstantsTwin, Queue, Twin
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, codes, stream
from chop.hw.design.stream import Stream, divisors, pack_words
from chop.hw.library.fixed_arithmetic.scalar import lower_line
from chop.hw.lower import LOWERINGS, Lowerer, Value, lowers
from chop.hw.lower.constants import (
    Constant,
    constant_operand,
    scalar_constant,
    scalar_operand,
    tensor_constant,
)
from chop.hw.lower.masks import AddedMask, added_mask, check_mask_readers
from chop.hw.reference.exact import Exact, constant
from chop.hw.reference.exact_ops import Arguments, exact_op, refuse_setting


class JoinTwin(Queue):
    """Cycle model: both operands are taken together; a skid buffer is last."""

    name = "Join"
    inputs = 2


@dataclass(frozen=True)
class ElementwiseBinary(Component):
    """Two streams of the same shape, element by element."""

    left: Stream
    right: Stream
    format: Fixed
    clock_mhz: float = field(default=DEFAULT_MHZ, kw_only=True)
    module = "fixed_arithmetic"
    operation: ClassVar[int]
    """Value of the module's parameter OPERATION."""

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
            **({"HAS_OPERAND_REGISTER": True} if self.has_operand_register() else {}),
        }

    def golden(self, *data: Ints) -> Ints:
        exact = self.span(self.left.format, self.right.format)
        a, b = (golden.wide(x, exact.width + 1) for x in data)
        return golden.cast(self.exact(a, b), exact.frac_width, self.format)

    @abstractmethod
    def exact(self, a: Any, b: Any) -> Any:
        """Return the result before the cast."""

    @abstractmethod
    def span(self, left: Fixed, right: Fixed) -> Span:
        """Return the range of exact results for operands of these formats."""

    def has_operand_register(self, *, is_late: bool = False) -> bool:
        """Return True if operands are registered: those of a product, and those that come late."""
        is_late = is_late or self.operation == 2
        return operand_registers(self.clock_mhz, is_late=is_late) > 1

    def for_clock(self, clock_mhz: float) -> Component:
        return replace(self, clock_mhz=clock_mhz)

    def twins(self) -> list[Twin]:
        return [JoinTwin(2, latency=1 + self.has_operand_register())]

    def cost(self) -> ComponentCost:
        return ComponentCost(register_bits=2 * self.outputs[0].beat_width)


@register
@dataclass(frozen=True)
class Add(ElementwiseBinary):
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
        """Return the shifts that bring both operands to the finer of their steps."""
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

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(32, lanes=4), stream(32, lanes=4), BYTE),
            cls(stream(32, number=COUNT), stream(32), Fixed(11, 4)),
            cls(stream(32), stream(32, number=COUNT), DOWN, alpha=3, alpha_frac=1),
            cls(stream(32, number=COUNT), stream(32, number=BIT), COUNT, alpha=0),
            cls(stream(32), stream(32), BYTE, alpha=3602879701896397, alpha_frac=55),
            cls(stream(32, number=WIDE), stream(32, number=NARROW), BYTE),
            cls(stream(32, number=NARROW), stream(32, number=WIDE), WIDE),
        ]


@register
@dataclass(frozen=True)
class Sub(Add):
    """left - alpha * 2**-alpha_frac * right."""

    sign = -1
    name, operation = "fixed_sub", 1


@register
@dataclass(frozen=True)
class Mul(ElementwiseBinary):
    """Product."""

    name, operation = "fixed_mul", 2

    def exact(self, a: Any, b: Any) -> Any:
        return a * b

    def span(self, left: Fixed, right: Fixed) -> Span:
        ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
        return Span(min(ends), max(ends), left.frac_width + right.frac_width)

    def cost(self) -> ComponentCost:
        return super().cost() + ComponentCost(multipliers=self.left.lanes)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(32, lanes=4), stream(32, lanes=4), BYTE),
            cls(stream(32, number=COUNT), stream(32, number=BIT), Fixed(8, 3)),
            cls(stream(32, number=COUNT), stream(32, number=COUNT), Fixed(13, 6)),
            cls(stream(32, number=Fixed(40, 20)), stream(32, number=Fixed(40, 20)), DOWN),
            cls(stream(32, number=NARROW), stream(32, number=WIDE), BYTE),
            cls(stream(32), stream(32), BYTE, clock_mhz=50),
        ]


@register
@dataclass(frozen=True, eq=False)
class WithConstant(Component):
    """Sum, difference or product with a constant right operand: position codes, a factor."""

    binary: ElementwiseBinary
    constant: Ints
    """Codes of the right operand, flat, or one for all elements."""
    module, name = "fixed_arithmetic", "fixed_constant_arithmetic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.binary.left,))
        object.__setattr__(self, "outputs", self.binary.outputs)
        if self.constant.size not in (1, self.binary.left.elements):
            raise ConfigError(
                f"{self.name}: got {self.constant.size} constants for "
                f"{self.binary.left.elements} elements."
            )

    def golden(self, *data: Ints) -> Ints:
        flat = data[0].reshape(len(data[0]), -1)
        right = np.broadcast_to(self.constant.reshape(-1), flat.shape)
        return self.binary.golden(flat, right).reshape(-1, *self.output.shape)

    @property
    def has_operand_register(self) -> bool:
        """True if both operands are registered: constants may be in block RAM."""
        bits = self.constant.size * self.binary.right.format.width
        return self.binary.has_operand_register(is_late=bits > LARGEST_IN_LOGIC)

    def parameters(self) -> Mapping[str, Parameter]:
        late = {"HAS_OPERAND_REGISTER": True} if self.has_operand_register else {}
        return {**self.binary.parameters(), **late}

    def for_clock(self, clock_mhz: float) -> Component:
        return replace(self, binary=replace(self.binary, clock_mhz=clock_mhz))

    def memories(self) -> tuple[Memory, ...]:
        lanes = self.binary.left.lanes
        rows = np.broadcast_to(self.constant.reshape(-1), self.binary.left.elements)
        beats = rows.reshape(-1, lanes)
        period = next(p for p in divisors(len(beats)) if (beats.reshape(-1, p * lanes)
                      == beats[:p].reshape(-1)).all())  # fmt: skip
        words = tuple(pack_words(beats[:period], self.binary.right.format.width))
        return (Memory("data_in_1", words, self.binary.right.beat_width),)

    def twins(self) -> list[Twin]:
        return [ConstantsTwin(latency=1 + self.has_operand_register)]

    def cost(self) -> ComponentCost:
        return super().cost() + self.binary.cost()

    @classmethod
    def cases(cls) -> Sequence[Component]:
        rows = stream(3, 4, lanes=2)
        small = replace(rows, format=NARROW)
        return [
            cls(Add(rows, rows, BYTE), codes(BYTE, 12)),
            cls(Sub(rows, small, WIDE), np.tile(codes(NARROW, 4), 3)),
            cls(Mul(rows, small, DOWN), np.array([3])),
            cls(Mul(stream(5), stream(5, number=COUNT), BYTE), codes(COUNT, 5)),
            cls(Add(stream(260), stream(260), BYTE), codes(BYTE, 260)),  # block RAM
        ]


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_add")
def lower_add(low: Lowerer, node: fx.Node) -> Value:
    """Lower to data_in_0 + alpha * data_in_1."""
    return _sum(low, node, 1)


@lowers("fixed_sub")
def lower_sub(low: Lowerer, node: fx.Node) -> Value:
    """Lower to data_in_0 - alpha * data_in_1."""
    return _sum(low, node, -1)


@lowers("fixed_div")
def lower_div(low: Lowerer, node: fx.Node) -> Value:
    """Lower a quotient over a power of two to a product with its reciprocal."""
    scalar = scalar_operand(low, node)
    number = 0.0 if scalar is None or scalar[1] else scalar[0]
    if number <= 0 or math.frexp(number)[0] != 0.5 or low.setting(node, "rounding_mode", None):
        what = f"a quotient over {number!r}" if number else "a quotient"
        raise low.refuse(
            node, what, "Allowed: over a power of two; mul by the reciprocal elsewhere"
        )
    steps = math.frexp(number)[1] - 1
    reciprocal = Constant(np.asarray(1 / number), Fixed(2 + max(-steps, 0), max(steps, 0)))
    return _with_constant(low, node, Mul, reciprocal, 1)


@lowers("fixed_mul")
def lower_mul(low: Lowerer, node: fx.Node) -> Value:
    """Lower to data_in_0 * data_in_1."""
    return _binary(low, node, Mul, lambda number, is_first: Line(number))


@lowers("fixed_minus")
def lower_neg(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a product with -1."""
    return lower_line(low, node, Line(Fraction(-1)), -1)


@lowers("fixed_pow")
def lower_pow(low: Lowerer, node: fx.Node) -> Value:
    """Lower a square to a product of the operand with itself, another power to a table."""
    is_square = getattr(node.target, "__name__", node.target) == "square"
    exponent = (2.0, False) if is_square else scalar_operand(low, node)
    if exponent is None or exponent[1]:
        raise low.refuse(node, "an exponent that is computed", "Allowed: a plain number")
    if exponent[0] != 2:
        return LOWERINGS["fixed_lut"].lower(low, node)  # type: ignore[return-value]
    value = low.operand(node)
    stream = low.stream(value)
    any_format = Fixed(8)
    exact = Mul(stream, stream, any_format).span(stream.format, stream.format)
    component = Mul(stream, stream, low.result_format(node, exact))
    return replace(value, wire=low.add(node, component, value, value))


def _sum(low: Lowerer, node: fx.Node, sign: int) -> Value:
    """Lower to data_in_0 + sign * alpha * data_in_1."""
    if getattr(node.target, "__name__", node.target) == "rsub":
        raise low.refuse(node, "operands in the order of rsub", "Allowed: sub")
    factor = low.setting(node, "alpha", 1)
    exact = Fraction(factor)
    if abs(exact.numerator).bit_length() > MAX_WIDTH:
        raise low.refuse(node, f"alpha = {factor}", f"Allowed: numbers of {MAX_WIDTH} bits")
    kind = Sub if sign * exact < 0 else Add
    alpha, frac = abs(exact.numerator), exact.denominator.bit_length() - 1

    def line(number: Fraction, is_first: bool) -> Line:
        return Line(sign * exact, number) if is_first else Line(Fraction(1), sign * exact * number)

    make = lambda a, b, out: kind(a, b, out, alpha, frac)  # noqa: E731
    mask = added_mask(low, node)
    if mask is not None:
        return _masked(low, node, mask, make)
    return _binary(low, node, make, line)


def _masked(low: Lowerer, node: fx.Node, mask: AddedMask, make: Make) -> Value:
    """Return the numbers plus the mask's finite term; softmax reads the mask itself."""
    check_mask_readers(low, node)
    if mask.numbers.any():
        constant = tensor_constant(low, node, mask.numbers, mask.place)
        return _with_constant(low, node, make, constant, mask.place)
    return low.operand(node, 1 - mask.place)


Make = Callable[[Stream, Stream, Fixed], ElementwiseBinary]
MakeLine = Callable[[Fraction, bool], Line]
"""Slope and offset of an op with a number, by the number and whether it is first."""


def _binary(low: Lowerer, node: fx.Node, make: Make, line: MakeLine) -> Value:
    scalar = scalar_operand(low, node)
    if scalar is not None:
        return _with_scalar(low, node, make, line, *scalar)
    constant = _constant(low, node)
    if constant is not None:
        return _with_constant(low, node, make, *constant)
    if len(low.operands(node)) < 2:
        raise low.refuse(node, "a constant operand", "Allowed: two tensors of the graph")
    left, right = low.operand(node, 0), low.operand(node, 1)
    if left.shape != right.shape:
        left, right = _alike(low, node, left, right)
    a = low.stream(left)
    right = low.arrange(node, right, left.order, a.shape)
    b = replace(a, format=low.stream(right).format)
    any_format = Fixed(8)
    exact = make(a, b, any_format).span(a.format, b.format)
    component = make(a, b, low.result_format(node, exact))
    return replace(left, wire=low.add(node, component, left, right))


def _alike(low: Lowerer, node: fx.Node, left: Value, right: Value) -> tuple[Value, Value]:
    """Return both operands in the shape of the result; the smaller one is repeated."""
    try:
        shape = np.broadcast_shapes(left.shape, right.shape)
    except ValueError:
        shape = ()
    if len(left.shape) != len(right.shape) or not shape:
        raise low.refuse(
            node, f"shapes {left.shape} and {right.shape}", "Allowed: shapes that broadcast"
        )
    return _repeated(low, node, left, shape), _repeated(low, node, right, shape)


def _repeated(low: Lowerer, node: fx.Node, value: Value, shape: tuple[int, ...]) -> Value:
    if value.shape == shape:
        return value
    place = np.empty_like(value.order)
    place[value.order] = np.arange(len(place))
    places = np.broadcast_to(place.reshape(value.shape), shape).reshape(-1)
    return Value(low.gather(node, value, places, shape), shape, np.arange(len(places)))


def _constant(low: Lowerer, node: fx.Node) -> tuple[Constant, int] | None:
    """Return the constant tensor among the operands, and its place."""
    constants = [constant_operand(low, node, k) for k in range(len(low.operands(node)))]
    return next(((each, k) for k, each in enumerate(constants) if each is not None), None)


def _with_scalar(
    low: Lowerer, node: fx.Node, make: Make, line: MakeLine, number: float, is_first: bool
) -> Value:
    """Return the op with a plain number: a constant operand, or a line if it is long or first."""
    constant = scalar_constant(number)
    form = line(Fraction(number), is_first)
    if constant is None or (is_first and form != line(Fraction(number), False)):
        return lower_line(low, node, form, number)
    return _with_constant(low, node, make, constant, 1)


def _with_constant(
    low: Lowerer, node: fx.Node, make: Make, constant: Constant, number: int
) -> Value:
    any_format = Fixed(8)
    value = low.operand(node, 1 if number == 0 and len(low.operands(node)) > 1 else 0)
    a = low.stream(value)
    b = replace(a, format=constant.format)
    binary = make(a, b, any_format)
    is_plain = (getattr(binary, "alpha", 1), getattr(binary, "alpha_frac", 0)) == (1, 0)
    if number == 0 and (isinstance(binary, Sub) or not is_plain):
        raise low.refuse(node, "a constant on the left", "Allowed: on the right")
    codes = constant.encoded(constant.format).reshape(constant.shape)
    if codes.size > 1:
        if np.broadcast_shapes(codes.shape, value.shape) != value.shape:
            raise low.refuse(
                node, f"shapes {value.shape} and {codes.shape}", "Allowed: constants that broadcast"
            )
        codes = np.broadcast_to(codes, value.shape).reshape(-1)[value.order]
    number_format = low.result_format(node, binary.span(a.format, b.format))
    component = WithConstant(make(a, b, number_format), codes.reshape(-1))
    return replace(value, wire=low.add(node, component, value))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("add", "input other alpha")
def exact_add(a: Arguments) -> Exact:
    """Return input + alpha * other."""
    x: Exact = a["input"]
    return x + _scaled(a)


@exact_op("sub", "input other alpha")
def exact_sub(a: Arguments) -> Exact:
    """Return input - alpha * other."""
    x: Exact = a["input"]
    return x - _scaled(a)


@exact_op("mul", "input other")
def exact_mul(a: Arguments) -> Exact:
    """Return input * other."""
    x: Exact = a["input"]
    y: Exact = a["other"]
    return x * y


@exact_op("div", "input other rounding_mode")
def exact_div(a: Arguments) -> Exact:
    """Return input / other, where other is a positive number."""
    x: Exact = a["input"]
    other: Exact = a["other"]
    number = other.fraction(0)
    if other.codes.size != 1 or number <= 0 or a.get("rounding_mode"):
        raise refuse_setting("other", "a tensor, or not positive", "a positive number")
    return (x * Exact(np.array([number.denominator]))) / number.numerator


@exact_op("neg", "input")
def exact_neg(a: Arguments) -> Exact:
    """Return -input."""
    x: Exact = a["input"]
    return -x


@exact_op("pow", "input exponent")
def exact_pow(a: Arguments) -> Exact:
    """Return the square of the input, another power in double precision."""
    x: Exact = a["input"]
    exponent = a.get("exponent", 2)
    return x * x if exponent == 2 else Exact.of(x.double() ** exponent)


def _scaled(a: Arguments) -> Exact:
    other: Exact = a["other"]
    alpha = a.get("alpha", 1)
    return other if alpha == 1 else other * constant(alpha)
