"""Parts of parametrised tables that `make test` runs; the rest is marked slow for `make slow`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest


def slow(value: Any) -> Any:
    """Return the parameter `value`, marked slow; a tuple is a row of parameters."""
    row = value if isinstance(value, tuple) else (value,)
    return pytest.param(*row, marks=pytest.mark.slow)


def first_and_slow(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the parameters `values`; all but the first `count` are marked slow."""
    return [value if k < count else slow(value) for k, value in enumerate(values)]


def slow_unless(values: Iterable[Any], is_kept: Callable[[Any], bool]) -> list[Any]:
    """Return the parameters `values`; those that `is_kept` rejects are marked slow."""
    return [value if is_kept(value) else slow(value) for value in values]


def rotated(values: Sequence[Any], turn: int, share: int = 3) -> list[Any]:
    """Return every `share`-th of `values`, from another start for each `turn`.

    Rows of a table that take turns cover every column: with 3 rows or more and a share of 3, each
    value meets a third of the rows.
    """
    return list(values[turn % share :: share])


def drawn(rows: Mapping[str, set[Any]], share: int) -> set[str]:
    """Return the names of one in `share` rows, drawn by their names; each row is a set of values.

    Rows that have a value which no row before them had go first, so that a table of several
    columns keeps all its values wherever there is room for them.
    """
    order = sorted(rows, key=lambda name: hashlib.sha256(name.encode()).digest())
    seen: set[Any] = set()
    first, later = [], []
    for name in order:
        (later if rows[name] <= seen else first).append(name)
        seen |= rows[name]
    return set((first + later)[: -(-len(rows) // share)])
