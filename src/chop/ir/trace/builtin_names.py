"""Replacements of Python's builtins during a trace that keep sizes tracked."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import linecache
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from chop.ir.trace.tracked import Tracked, TrackedFloat, TrackedInt, combine, plain

_range = builtins.range


class _StandIn(type):
    """Metaclass of a stand-in, which behaves as its type in isinstance and issubclass."""

    stands_for: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.stands_for)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.stands_for)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)  # type: ignore[attr-defined]


class tracked_int(metaclass=_StandIn):  # noqa: N801 - stands in for int
    """Type `int`, whose calls keep the expression of a tracked number."""

    stands_for = int

    @staticmethod
    def make(*args: Any, **kwargs: Any) -> Any:
        """Return `int(*args)`."""
        if len(args) == 1 and isinstance(args[0], TrackedInt):
            return args[0]
        if len(args) == 1 and isinstance(args[0], TrackedFloat):
            return math.trunc(args[0])
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return tracked_int.make(args[0].item())
        return int(*args, **kwargs)


class tracked_range(metaclass=_StandIn):  # noqa: N801 - stands in for range
    """Type `range`: the length of a range over a tracked size is a decision."""

    stands_for = _range

    @staticmethod
    def make(*args: Any) -> Any:
        """Return `range(*args)`, as a list of tracked numbers if its start or step is tracked."""
        if not any(isinstance(a, TrackedInt) for a in args):
            return _range(*args)
        numbers = _range(*map(plain, args))
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        _decide_length(start, stop, step, len(numbers))
        if isinstance(start, Tracked) or isinstance(step, Tracked):
            return [start + i * step for i in _range(len(numbers))]
        return numbers


def _decide_length(start: Any, stop: Any, step: Any, length: int) -> None:
    """Record the decision that `range(start, stop, step)` has this length."""
    numbers = [n for n in (start, stop, step) if isinstance(n, Tracked)]
    recorder = numbers[0].expression.recorder
    if isinstance(step, Tracked):
        recorder.decide("gt" if plain(step) > 0 else "lt", step, 0)
    count = -((start - stop) // step)  # the number of steps, rounded up
    if isinstance(count, Tracked):
        recorder.decide("eq" if length else "le", count, length)


def tracked_len(value: Any) -> Any:
    """Return the tracked first size of a tensor, or the length of another value."""
    return value.shape[0] if isinstance(value, torch.Tensor) else builtins.len(value)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `min` or `max` that tracks its result instead of choosing an operand."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not args:
            return function(*args, **kwargs)
        among = list(args[0]) if len(args) == 1 else args
        numbers = all(isinstance(a, int | float) for a in among)
        if not numbers or not any(isinstance(a, Tracked) for a in among) or len(among) < 2:
            return function(among)
        return combine(function, *among)

    return choose


TRACKED_BUILTINS = {
    "int": tracked_int,
    "len": tracked_len,
    "min": _extreme(min),
    "max": _extreme(max),
}
"""Name in a model's source file -> its meaning during a trace."""

_INT_AS_DTYPE = re.compile(r"dtype ?= ?int\b|\.(to|type)\(int\)")


def _is_dtype(namespace: dict[str, Any]) -> bool:
    """Return True if a file passes `int` to torch as a dtype, which a stand-in cannot be."""
    source = "".join(linecache.getlines(str(namespace.get("__file__", ""))))
    return _INT_AS_DTYPE.search(source) is not None


@contextlib.contextmanager
def keeping_sizes(namespaces: list[dict[str, Any]]) -> Iterator[None]:
    """Replace builtins in these module namespaces by versions that keep the expression.

    `range` is replaced everywhere, because a loop in any file may be over a size.
    """
    # torch's compiler, which fake tensors import, assumes that the first `range` is Python's own
    importlib.import_module("torch._dynamo")
    names = TRACKED_BUILTINS
    changed = [
        (space, name)
        for space in namespaces
        for name in names
        if name not in space and not (name == "int" and _is_dtype(space))
    ]
    for space, name in changed:
        space[name] = names[name]
    builtins.range = tracked_range  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        builtins.range = _range  # type: ignore[misc]
        for space, name in changed:
            space.pop(name, None)
