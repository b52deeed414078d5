"""Checks of what a caller hands to a public function, before anything is done with it."""

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
    """What an argument may be: in words, and as a test."""

    words: str
    accepts: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(f"{self.words} or {other.words}", lambda v: self.accepts(v) or other.accepts(v))


def an(kind: type, words: str | None = None) -> Kind:
    """An instance of `kind`."""
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return Kind(words or f"{article} {kind.__name__}", lambda value: isinstance(value, kind))


def _is_many(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and os.fspath(value) != ""


def _is_new_file(value: Any) -> bool:
    return _is_path(value) and bool(Path(value).name) and not os.path.isdir(value)


def _is_stem(value: Any) -> bool:
    return _is_path(value) and bool(Path(value).name)


def _is_new_folder(value: Any) -> bool:
    return _is_path(value) and not os.path.isfile(value)


NONE = Kind("None", lambda value: value is None)
PATH = Kind("a path", _is_path)
NEW_FILE = Kind("a path of a file to write, where no folder is", _is_new_file)
NEW_FOLDER = Kind("a path of a folder to write, where no file is", _is_new_folder)
STEM = Kind("a path that ends in a name", _is_stem)
"""A checkpoint: its files are the path with suffixes."""
TEXT = an(str, "text")
MAPPING = an(Mapping, "a mapping")
FUNCTION = Kind("a function", callable)
MANY = Kind("a list", _is_many)
NUMBER = Kind("a number", _is_number)
WHOLE = Kind("a whole number", _is_whole)


def check(where: str, kind: Kind, value: Any, error: type[ChopError] = ConfigError) -> None:
    """Raise an `error` unless `value` is of the kind."""
    if not kind.accepts(value):
        shown = repr(value)
        shown = f"{shown[:57]}..." if len(shown) > 60 else shown
        raise error(f"{where}: expected {kind.words}, got {shown} ({type(value).__name__}).")


def takes(error: type[ChopError] = ConfigError, /, **kinds: Kind) -> Callable[[F], F]:
    """Check the arguments that are named here whenever the function is called.

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
