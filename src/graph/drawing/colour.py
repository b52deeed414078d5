"""Brightness of colours."""

from __future__ import annotations


def is_dark(fill: str) -> bool:
    """Return True if white text is easier to read than black on a #rgb or #rrggbb colour."""
    digits = fill.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    try:
        red, green, blue = (int(digits[i : i + 2], 16) for i in (0, 2, 4))
    except ValueError:
        return False  # a named colour counts as light
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140
