"""Whether a value that was read is of the type its place is annotated with."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """The types `cls` annotates its attributes with; none where they cannot be told."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):  # annotations meant for readers alone
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` may stand where `hint` is wanted; what is not plain data fits anything.

    A list may stand for a tuple and a whole number for a fraction: layers are built with either.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Final, typing.ClassVar) and arguments:
        return fits(value, arguments[0])
    kind = origin or hint
    if kind in (list, tuple, collections.abc.Sequence):
        return _fits_items(value, arguments)
    if kind in (dict, Mapping):
        of_value = arguments[1] if len(arguments) == 2 else Any
        return isinstance(value, Mapping) and all(fits(v, of_value) for v in value.values())
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and (kind is bool or not _is_flag(value, kind))
    if kind is types.NoneType or kind is None:
        return value is None
    if kind is str:
        return isinstance(value, str)
    return not isinstance(kind, type) or kind is object or isinstance(value, kind)


_NUMBERS: dict[Any, Any] = {bool: bool, int: int, float: (int, float)}


def _is_flag(value: Any, kind: Any) -> bool:
    return kind is float and isinstance(value, bool)


def _fits_items(value: Any, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(value, list | tuple):
        return False
    if not arguments:
        return True
    if len(arguments) == 1 or arguments[-1] is Ellipsis:
        return all(fits(item, arguments[0]) for item in value)
    pairs = zip(value, arguments, strict=False)
    return len(value) == len(arguments) and all(fits(v, a) for v, a in pairs)


def text_of(hint: Any) -> str:
    """`hint` for a message."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
