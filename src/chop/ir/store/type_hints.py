"""Check of a value from a file against a type annotation."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotated types of the attributes of `cls`, if they can be resolved."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):  # annotations that cannot be evaluated
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Return True if `value` has the type `hint`; a type that is not plain data fits any value.

    A list fits a tuple and an integer fits a float, because layers are built with either.
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
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is types.NoneType or kind is None:
        return value is None
    return not isinstance(kind, type) or kind is object or isinstance(value, kind)


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
    """Return `hint` as text for a message."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
