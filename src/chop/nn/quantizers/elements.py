"""The element formats of the Open Compute Project (FP8 and microscaling)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.nn.quantizers.minifloat import FloatGrid

FLOAT_ELEMENTS = {
    "e4m3": FloatGrid(4, 3, 7, "fn"),
    "e5m2": FloatGrid(5, 2, 15, "ieee"),
    "e3m2": FloatGrid(3, 2, 3, "none"),
    "e2m3": FloatGrid(2, 3, 1, "none"),
    "e2m1": FloatGrid(2, 1, 1, "none"),
}


def element_from_widths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that may spell the element as `exponent_width` and `frac_width`, by its name."""
    named = dict(settings)
    exponent_width, frac_width = named.pop("exponent_width", None), named.pop("frac_width", None)
    if exponent_width is not None or frac_width is not None:
        named.setdefault("element", f"e{exponent_width}m{frac_width}")
    return named
