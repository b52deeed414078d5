"""Numbers that remember the graph expression they came from.

While a model is traced, `x.shape[0]` is a `TrackedInt`: a real `int`, so Python control flow works
as ever, that also knows it is `getattr(x, "shape")[0]`. When it reaches a torch function the
expression is written into the graph, which therefore stays open in batch size and length.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx


class Expression:
    """A value of the graph that becomes a node when it is first used."""

    def __init__(
        self, write: Callable[[Any, tuple[Any, ...]], fx.Node], function: Any, *args: Any
    ) -> None:
        self.write = write
        self.function = function
        self.args = args
        self._node: fx.Node | None = None

    @property
    def node(self) -> fx.Node:
        """The node that computes this value, written to the graph on first call."""
        if self._node is None:
            self._node = self.write(self.function, self.args)
        return self._node


class Tracked:
    """Mixin of the number types: holds the expression, says whether it depends on data."""

    expression: Expression
    depends_on_data: bool

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> Any:
        return type(_plain(self)), (_plain(self),)


class TrackedInt(Tracked, int):
    """An int with an expression."""


class TrackedFloat(Tracked, float):
    """A float with an expression."""


class ValueDependenceError(Exception):
    """Python control flow asked for the value of a tensor; the tracer says where."""


def track(value: Any, expression: Expression, depends_on_data: bool = False) -> Any:
    """`value` with its expression, where it is an int or float; else `value` itself."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number = TrackedInt(value) if isinstance(value, int) else TrackedFloat(value)
    number.expression = expression
    number.depends_on_data = depends_on_data
    return number


def _binary(name: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, bool) or not isinstance(other, int | float):
            return NotImplemented
        left, right = (other, self) if swapped else (self, other)
        value = function(_plain(left), _plain(right))
        depends = self.depends_on_data or getattr(other, "depends_on_data", False)
        return track(value, Expression(self.expression.write, function, left, right), depends)

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        expression = Expression(self.expression.write, function, self)
        return track(function(_plain(self)), expression, self.depends_on_data)

    return method


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if self.depends_on_data:
            raise ValueDependenceError(f"'{name}' of a number read from a tensor decides")
        return (
            function(_plain(self), _plain(other))
            if isinstance(other, int | float)
            else NotImplemented
        )

    return method


def _plain(value: Any) -> Any:
    if isinstance(value, TrackedInt):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, TrackedFloat) else value


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
UNARY: dict[str, Callable[[Any], Any]] = {"__neg__": operator.neg, "__abs__": abs}
ROUNDING: dict[str, Callable[[Any], Any]] = {
    "__ceil__": math.ceil,
    "__floor__": math.floor,
    "__trunc__": math.trunc,
    "__round__": round,
}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

for _class in (TrackedInt, TrackedFloat):
    for _name in BINARY:
        setattr(_class, f"__{_name}__", _binary(_name))
        setattr(_class, f"__r{_name}__", _binary(_name, swapped=True))
    for _method, _function in {**UNARY, **ROUNDING}.items():
        setattr(_class, _method, _unary(_function))
    for _name in COMPARISONS:
        setattr(_class, f"__{_name}__", _comparison(_name))
    _class.__hash__ = int.__hash__ if _class is TrackedInt else float.__hash__  # type: ignore


class _IntType(type):
    """Makes the stand-in for `int` behave as the type `int` in isinstance and calls."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, builtins.int)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.int)

    def __call__(cls, *args: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], TrackedInt):
            return args[0]
        if len(args) == 1 and isinstance(args[0], TrackedFloat):
            return math.trunc(args[0])
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return cls(args[0].item())
        return builtins.int(*args)


class tracked_int(metaclass=_IntType):  # noqa: N801 - stands in for int
    """The type `int`, whose calls keep the expression of a tracked number."""


def tracked_len(value: Any) -> Any:
    """The first size of a tensor with its expression; else the length."""
    return value.shape[0] if isinstance(value, torch.Tensor) else builtins.len(value)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    """`min` or `max` that stays open in which of its numbers it is."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        numbers = all(isinstance(a, int | float) for a in args)
        first = next((a for a in args if isinstance(a, Tracked)), None)
        if kwargs or len(args) < 2 or not numbers or first is None:
            return function(*args, **kwargs)
        depends = any(getattr(a, "depends_on_data", False) for a in args)
        expression = Expression(first.expression.write, function, *args)
        return track(function(*map(_plain, args)), expression, depends)

    return choose


TRACKED_BUILTINS = {
    "int": tracked_int,
    "len": tracked_len,
    "min": _extreme(min),
    "max": _extreme(max),
}
"""What these names mean in a model's own source file while it is traced."""


@contextmanager
def keeping_sizes(namespaces: list[dict[str, Any]]) -> Iterator[None]:
    """Give builtins in these module namespaces versions that keep the expression."""
    names = TRACKED_BUILTINS
    changed = [(space, name) for space in namespaces for name in names if name not in space]
    for space, name in changed:
        space[name] = names[name]
    try:
        yield
    finally:
        for space, name in changed:
            space.pop(name, None)
