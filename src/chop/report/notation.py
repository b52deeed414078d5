"""Formats and shapes as a page writes them: `fixed8.4`, `64×32`."""

from __future__ import annotations

import re

_FIXED = re.compile(r"\b(U?)Q(\d+)\.(-?\d+)")
_TUPLE = re.compile(r"\((\d+(?:, \d+)*),?\)")


def format_text(told: str) -> str:
    """Return the spelling of a format that hardware writes in its own way.

    >>> format_text("Q5.1"), format_text("UQ8.0 narrow"), format_text("mxint4")
    ('fixed5.1', 'ufixed8 narrow', 'mxint4')
    """
    return _FIXED.sub(lambda match: _spelling(*match.groups()), told)


def _spelling(unsigned: str, width: str, frac_width: str) -> str:
    places = "" if frac_width == "0" else f".{frac_width}"  # sums are wider than any format
    return f"{unsigned.lower()}fixed{width}{places}"


def shape_text(told: str) -> str:
    """Shapes written as tuples, with crosses and an arrow.

    >>> shape_text("(2, 64) -> (32,)")
    '2×64 → 32'
    """
    return _TUPLE.sub(lambda m: m[1].replace(", ", "×"), told).replace("->", "→")
