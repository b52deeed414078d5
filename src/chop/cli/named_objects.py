"""Things named on a command line: module:name, a file of the user, or a Python object."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from chop.cli.failures import SourceError


class NamedObject(str):
    """The name of an object, in the place of a name or path in a configuration."""

    thing: Any

    @classmethod
    def of(cls, thing: Any) -> NamedObject:
        """Return a name for `thing` that is no path and no registered name."""
        named = cls(f"<{type(thing).__name__} object>")
        named.thing = thing
        return named


def thing_of(name: Any) -> Any:
    """Return the object that `name` stands for, or None for a plain name."""
    return name.thing if isinstance(name, NamedObject) else None


def load_name(place: str) -> Any:
    """Import and return the object at "module:name" of this package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


_LOADED: set[str] = set()


def load_plugins(places: Iterable[str]) -> None:
    """Import modules or files of the user, each once, so that they register their names."""
    for place in places:
        key = str(Path(place).resolve()) if place.endswith(".py") else place
        if key not in _LOADED:
            _load(place, "plugins")
            _LOADED.add(key)


def import_name(place: str) -> Any:
    """Import and return the object at `module:name` or `path/to/file.py:name`."""
    owner, _, name = place.rpartition(":")
    if not owner or not name:
        raise SourceError(f"'{place}': expected module:name or path/to/file.py:name.")
    module = _load(owner, place)
    if not hasattr(module, name):
        raise SourceError(f"{place}: '{owner}' has no '{name}'.")
    return getattr(module, name)


def _load(owner: str, where: str) -> Any:
    try:
        return _load_file(Path(owner)) if owner.endswith(".py") else _load_module(owner)
    except (ImportError, SyntaxError) as error:
        raise SourceError(f"{where}: cannot import '{owner}' ({error}).") from error


def _load_module(name: str) -> Any:
    if os.getcwd() not in sys.path:  # as `python -m` does
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


_FILES: dict[tuple[Path, int], Any] = {}
"""Path and time of change of a file -> its module."""


def _load_file(path: Path) -> Any:
    """Return the module of a file, executed once for all its uses unless the file changes.

    A file that registers names and also builds the model is named twice on a command line.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError("no such file")
    key = (path.resolve(), path.stat().st_mtime_ns)
    if key not in _FILES:
        _FILES[key] = _execute(path, spec)
    return _FILES[key]


def _execute(path: Path, spec: ModuleSpec) -> Any:
    assert spec.loader is not None, "checked by the caller"
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    return module
