"""Numbers with the graph expression that computes them.

While a model is traced, `x.shape[0]` is a `TrackedInt`: an `int`, so that Python control flow
works, with the expression `getattr(x, "shape")[0]`. When a torch function receives it, the
expression is written into the graph, so that batch size and length stay variable. When Python
decides by it (a comparison, a loop, a key of a dict), the recorder stores the decision.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Protocol

from torch import fx


class Recording(Protocol):
    """Interface of the recorder that tracked numbers use."""

    def write(self, function: Any, args: tuple[Any, ...]) -> fx.Node:
        """Write a call to the graph."""

    def decide(self, name: str, *operands: Any) -> None:
        """Store that Python branched on `operator.name(*operands)`."""


class Expression:
    """Value of the graph that becomes a node on first use."""

    def __init__(self, recorder: Recording, function: Any, *args: Any) -> None:
        self.recorder = recorder
        self.function = function
        self.args = args
        self._node: fx.Node | None = None

    @property
    def node(self) -> fx.Node:
        """Node that computes this value, written to the graph on first use."""
        if self._node is None:
            self._node = self.recorder.write(self.function, self.args)
        return self._node


class Tracked:
    """Mixin of the number types with the expression and whether it depends on data."""

    expression: Expression
    depends_on_data: bool

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> Any:
        return type(plain(self)), (plain(self),)

    def __bool__(self) -> bool:
        self.expression.recorder.decide("ne", self, 0)
        return plain(self) != 0

    def __pos__(self) -> Any:
        return self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self


class TrackedInt(Tracked, int):
    """Integer with an expression."""


class TrackedFloat(Tracked, float):
    """Float with an expression."""


class ValueDependenceError(Exception):
    """Python control flow that depends on the value of a tensor."""


def track(value: Any, expression: Expression, depends_on_data: bool = False) -> Any:
    """Return an int or float with its expression; return other values unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number = TrackedInt(value) if isinstance(value, int) else TrackedFloat(value)
    number.expression = expression
    number.depends_on_data = depends_on_data
    return number


def plain(value: Any) -> Any:
    """Return the number as Python's own type."""
    if isinstance(value, TrackedInt):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, TrackedFloat) else value


def pin(value: Any) -> Any:
    """Return a plain number for a use that cannot be followed; its value becomes a decision."""
    if isinstance(value, Tracked):
        value.expression.recorder.decide("eq", value, plain(value))
    return plain(value)


def combine(function: Callable[..., Any], *operands: Any) -> Any:
    """Return `function` of these numbers, at least one of them tracked, with its expression."""
    first = next(o for o in operands if isinstance(o, Tracked))
    depends = any(getattr(o, "depends_on_data", False) for o in operands)
    expression = Expression(first.expression.recorder, function, *operands)
    return track(function(*map(plain, operands)), expression, depends)


def _binary(name: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, list | tuple | str | bytes | complex):
            pin(self)  # [0] * size: the length is decided here
        if not isinstance(other, int | float):
            return NotImplemented
        other = int(other) if isinstance(other, bool) else other
        return combine(function, *((other, self) if swapped else (self, other)))

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: Any, *digits: Any) -> Any:
        return function(pin(self), *digits) if digits else combine(function, self)

    return method


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        self.expression.recorder.decide(name, self, other)
        return function(plain(self), plain(other))

    return method


def _losing(kind: type, name: str) -> Callable[..., Any]:
    """Return a method with a plain result, which is valid for this value only."""
    function = getattr(kind, name)

    def method(self: Any, *args: Any) -> Any:
        return function(pin(self), *args)

    return method


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
UNARY: dict[str, Callable[[Any], Any]] = {
    "__neg__": operator.neg,
    "__abs__": abs,
    "__ceil__": math.ceil,
    "__floor__": math.floor,
    "__trunc__": math.trunc,
    "__round__": round,
}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
LOSING = (
    *("__hash__", "__int__", "__float__", "__index__", "__str__", "__repr__", "__format__"),
    *("__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__invert__"),
    *("__lshift__", "__rlshift__", "__rshift__", "__rrshift__"),
    *("bit_length", "bit_count", "to_bytes", "as_integer_ratio", "is_integer", "hex"),
)
"""Methods whose result is not tracked, such as a key of a dict or a name."""

for _class, _kind in ((TrackedInt, int), (TrackedFloat, float)):
    for _name in BINARY:
        setattr(_class, f"__{_name}__", _binary(_name))
        setattr(_class, f"__r{_name}__", _binary(_name, swapped=True))
    for _name, _function in UNARY.items():
        setattr(_class, _name, _unary(_function))
    for _name in COMPARISONS:
        setattr(_class, f"__{_name}__", _comparison(_name))
    for _name in LOSING:
        if hasattr(_kind, _name):
            setattr(_class, _name, _losing(_kind, _name))
