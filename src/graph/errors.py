"""The exceptions of this package: one root, so a caller can catch all of them at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GraphError(Exception):
    """Root of every error this package raises on purpose."""


class DrawError(GraphError, ValueError):
    """A drawing was asked for with a repeated box or an edge to nowhere."""


def suggest(name: object, known: Iterable[str]) -> str:
    """A sentence that names the nearest known name and lists up to twelve of the rest.

    >>> suggest("sofmax", ["add", "softmax"])
    "Did you mean 'softmax'? Known: add, softmax."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    rest = ", …" if len(names) > 12 else ""
    return f"{hint}Known: {', '.join(names[:12]) or 'none'}{rest}."
