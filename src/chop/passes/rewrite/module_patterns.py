"""Modules selected by a list of patterns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from chop.errors import ConfigError
from chop.patterns import check_pattern, fullmatch


def matches(pattern: str, path: str) -> bool:
    """Return True if `pattern` is the path, its last names, or an expression for all of it.

    >>> matches("attention.query", "layer.0.attention.query")
    True
    >>> matches(r"layer\\.\\d+\\..*", "layer.0.attention.query")
    True
    >>> matches("query", "layer.0.subquery")
    False
    """
    is_name = path == pattern or path.endswith(f".{pattern}")
    return is_name or fullmatch(pattern, path)


def check_patterns(patterns: Iterable[str], where: str) -> None:
    """Raise ConfigError if a pattern is not a regular expression."""
    for pattern in patterns:
        check_pattern(pattern, where, ConfigError, "neither a path nor a regular expression")


def select(patterns: Sequence[str] | None, paths: Sequence[str], where: str) -> list[str]:
    """Return the paths that some pattern matches, in order; None selects all.

    Raise for a pattern that matches nothing, with the nearest paths.
    """
    if patterns is None:
        return list(paths)
    check_patterns(patterns, where)
    for pattern in patterns:
        if not any(matches(pattern, path) for path in paths):
            near = difflib.get_close_matches(pattern, paths, n=4, cutoff=0.0)
            raise ConfigError(
                f"{where}: '{pattern}' matches no module. Nearest: {', '.join(near) or 'none'}."
            )
    return [path for path in paths if any(matches(pattern, path) for pattern in patterns)]
