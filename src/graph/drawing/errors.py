"""Errors in the boxes and edges of a drawing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DrawError(ValueError):
    """A repeated box, or an edge to an unknown box."""


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
