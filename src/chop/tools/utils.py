"""Access to attributes by dotted path."""

from __future__ import annotations

import functools
from typing import Any

from chop.errors import ConfigError

__all__ = ["deepgetattr", "deepsetattr"]

_REQUIRED = object()


def deepgetattr(owner: Any, path: str, default: Any = _REQUIRED) -> Any:
    """Return the attribute at the dotted `path`, or `default` if it does not exist."""
    try:
        return functools.reduce(getattr, path.split("."), owner)
    except AttributeError:
        if default is _REQUIRED:
            raise
        return default


def deepsetattr(owner: Any, path: str, value: Any) -> None:
    """Set the attribute at the dotted `path`: `deepsetattr(model, "encoder.0.dense", module)`."""
    parent, _, name = path.rpartition(".")
    if not name:
        raise ConfigError(f"deepsetattr: '{path}' names no attribute.")
    place = deepgetattr(owner, parent, None) if parent else owner
    if place is None:
        raise ConfigError(f"deepsetattr: {type(owner).__name__} has no '{parent}'.")
    setattr(place, name, value)
