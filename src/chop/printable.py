"""Text that is safe to print: names in it may come from untrusted files."""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal, and marks that reverse the direction of text."""


def printable(text: str) -> str:
    """Return `text` with control characters as escapes.

    >>> print(printable(f"red{chr(27)}[31m"))
    red\\x1b[31m
    """
    return CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)
