"""Text that is safe to print: names in it may come from files of others."""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal acts on, and marks that turn the direction of text around."""


def printable(text: str) -> str:
    """Return `text` with control characters as escapes: names in it may come from files.

    >>> print(printable(f"red{chr(27)}[31m"))
    red\\x1b[31m
    """
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
