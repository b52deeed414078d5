"""The exceptions of this package: one root, so a caller can catch all of them at once.

Every message says where (the node's name and op), what was given and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GraphError(Exception):
    """Root of every error this package raises on purpose."""


class NameTakenError(GraphError, ValueError):
    """Two nodes of one graph were given the same name."""


class UnknownNodeError(GraphError, LookupError):
    """A name that no node of the graph answers to."""


class UnknownOpError(GraphError, LookupError):
    """An operation, or an attribute of one, that the IR does not have."""


class ShapeError(GraphError, ValueError):
    """Shapes that do not fit an operation."""


class DtypeError(GraphError, TypeError):
    """Data types that do not fit an operation."""


class CycleError(GraphError, ValueError):
    """A graph whose nodes wait for each other."""


class InputError(GraphError, ValueError):
    """An input is missing, unknown, or not of the declared shape and dtype."""


class GradientError(GraphError, ValueError):
    """A gradient was asked for where none exists."""


class ImportFxError(GraphError, ValueError):
    """A torch.fx graph uses something this IR has no operation for."""


def suggest(name: object, known: Iterable[str]) -> str:
    """A sentence that names the nearest known name and lists up to thirty of the rest.

    >>> suggest("sofmax", ["add", "softmax"])
    "Did you mean 'softmax'? Known: add, softmax."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    rest = ", …" if len(names) > 30 else ""
    return f"{hint}Known: {', '.join(names[:30]) or 'none'}{rest}."
