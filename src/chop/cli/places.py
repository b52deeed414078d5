"""What is at module:name or in a file of the user's, imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chop.cli.failures import SourceError


def load_name(place: str) -> Any:
    """What is at "module:name" of this package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


_LOADED: set[str] = set()


def load_plugins(places: Iterable[str]) -> None:
    """Import modules or files of the user's, once: what they register is known from then on."""
    for place in places:
        key = str(Path(place).resolve()) if place.endswith(".py") else place
        if key not in _LOADED:
            _load(place, "plugins")
            _LOADED.add(key)


def import_name(place: str) -> Any:
    """What `module:name` or `path/to/file.py:name` is."""
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


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError("no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    return module
