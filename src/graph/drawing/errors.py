"""What is wrong with a drawing that was asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DrawError(ValueError):
    """A drawing was asked for with a repeated box or an edge to nowhere."""


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
