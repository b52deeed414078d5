"""One way to write formats and shapes on a page: `fixed(8, 4)`, `64×32`."""

from __future__ import annotations

import re

_FIXED = re.compile(r"\b(U?)Q(\d+)\.(-?\d+)")
_TUPLE = re.compile(r"\((\d+(?:, \d+)*),?\)")


def format_text(told: str) -> str:
    """A format as the rest of a page writes it.

    >>> format_text("Q5.1"), format_text("UQ8.4 narrow"), format_text("mxint(4, 8)")
    ('fixed(5, 1)', 'ufixed(8, 4) narrow', 'mxint4')
    """
    fixed = _FIXED.sub(lambda m: f"{'u' if m[1] else ''}fixed({m[2]}, {m[3]})", told)
    return re.sub(r"\bmxint\((\d+), 8\)", r"mxint\1", fixed)  # 8: of the shared exponent, always


def shape_text(told: str) -> str:
    """Shapes written as tuples, with crosses and an arrow.

    >>> shape_text("(2, 64) -> (32,)")
    '2×64 → 32'
    """
    return _TUPLE.sub(lambda m: m[1].replace(", ", "×"), told).replace("->", "→")
