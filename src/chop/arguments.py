"""Checks of the arguments of public functions."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chop.errors import ChopError, ConfigError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kind:
    """Kind of argument: in words, and as a test."""

    words: str
    accepts: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(f"{self.words} or {other.words}", lambda v: self.accepts(v) or other.accepts(v))


def an(kind: type, words: str | None = None) -> Kind:
    """Return the kind of all instances of `kind`."""
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return Kind(words or f"{article} {kind.__name__}", lambda value: isinstance(value, kind))


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and os.fspath(value) != ""


def _is_stem(value: Any) -> bool:
    return _is_path(value) and bool(Path(value).name)


NONE = Kind("None", lambda value: value is None)
PATH = Kind("a path", _is_path)
NEW_FILE = Kind(
    "a path of a file to write, where no folder is",
    lambda value: _is_stem(value) and not os.path.isdir(value),
)
NEW_FOLDER = Kind(
    "a path of a folder to write, where no file is",
    lambda value: _is_path(value) and not os.path.isfile(value),
)
STEM = Kind("a path that ends in a name", _is_stem)
"""Path of a checkpoint without the suffixes of its files."""
TEXT = an(str, "text")
MAPPING = an(Mapping, "a mapping")
FUNCTION = Kind("a function", callable)
MANY = Kind(
    "a list", lambda v: isinstance(v, Iterable) and not isinstance(v, str | bytes | Mapping)
)
NUMBER = Kind("a number", lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool))
WHOLE = Kind(
    "a whole number", lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool)
)


def check(where: str, kind: Kind, value: Any, error: type[ChopError] = ConfigError) -> None:
    """Raise `error` unless `value` is of the kind."""
    if not kind.accepts(value):
        text = repr(value)
        text = f"{text[:57]}..." if len(text) > 60 else text
        raise error(f"{where}: expected {kind.words}, got {text} ({type(value).__name__}).")


def takes(error: type[ChopError] = ConfigError, /, **kinds: Kind) -> Callable[[F], F]:
    """Return a decorator that checks the named arguments of every call.

    >>> @takes(path=PATH)
    ... def read(path): ...
    >>> read(3)
    Traceback (most recent call last):
    chop.errors.ConfigError: read: path: expected a path, got 3 (int).
    """

    def decorate(function: F) -> F:
        names = list(inspect.signature(function).parameters)
        where = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            for name, value in (*zip(names, args, strict=False), *options.items()):
                if name in kinds:
                    check(f"{where}: {name}", kinds[name], value, error)
            return function(*args, **options)

        return checked  # type: ignore[return-value]

    return decorate
