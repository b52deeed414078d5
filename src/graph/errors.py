"""Exceptions of this package, with one root.

A message has the node's name and op, the value, and the allowed values.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GraphError(Exception):
    """Root of the errors of this package."""


class NameTakenError(GraphError, ValueError):
    """Two nodes of one graph have the same name."""


class UnknownNodeError(GraphError, LookupError):
    """A name that no node of the graph has."""


class UnknownOpError(GraphError, LookupError):
    """An operation, or an attribute of one, that the IR does not have."""


class ShapeError(GraphError, ValueError):
    """Shapes that do not fit an operation."""


class DtypeError(GraphError, TypeError):
    """Data types that do not fit an operation."""


class CycleError(GraphError, ValueError):
    """A graph with a cycle."""


class InputError(GraphError, ValueError):
    """An input is missing, unknown, or not of the declared shape and dtype."""


class GradientError(GraphError, ValueError):
    """A gradient that does not exist."""


class ImportFxError(GraphError, ValueError):
    """A torch.fx graph with an operation that this IR lacks."""


def suggest(name: object, allowed: Iterable[str]) -> str:
    """Return a sentence with the nearest allowed name and up to thirty of all names.

    >>> suggest("sofmax", ["add", "softmax"])
    "Did you mean 'softmax'? Known: add, softmax."
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    rest = ", …" if len(names) > 30 else ""
    return f"{hint}Known: {', '.join(names[:30]) or 'none'}{rest}."
