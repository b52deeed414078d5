"""Errors of predictions, by kind of design: measured on routed designs, fitted to none.

`bands.json` is written by bench/prediction_bands.py: by family and kind of design, the lowest and
the highest error of LUTs, flip-flops and clock, and the number of designs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BANDS = Path(__file__).parent / "bands.json"
KINDS = {
    "transformer": ("softmax", "layer_norm", "rms_norm", "matmul"),
    "convolutional": ("conv", "window"),
    "products": ("linear", "shift_add"),
}
"""Words in the names of components, by kind of design; the first kind that fits counts."""
OTHER = "other"
QUANTITIES = ("lut", "ff", "mhz")


def design_kind(components: Sequence[str]) -> str:
    """Return the kind of a design with stages of these components.

    >>> design_kind(["fixed_linear", "fixed_relu"])
    'products'
    """
    names = " ".join(components)
    return next((k for k, words in KINDS.items() if any(w in names for w in words)), OTHER)


@functools.cache
def bands() -> dict[str, Any]:
    """Return the measured errors by family, kind of design and quantity."""
    errors: dict[str, Any] = json.loads(BANDS.read_text())
    return errors


def error_band(family: str, kind: str) -> dict[str, str]:
    """Return the error of each quantity as text, and under `of` the designs it was measured on.

    "[-3 … +12 %]": routed designs had from 3 % less to 12 % more than predicted.
    """
    band = bands().get(family, {}).get(kind)
    if band is None:
        return {**dict.fromkeys(QUANTITIES, ""), "of": "; errors of such designs are not measured"}
    texts = {name: f" [{_range(*ends)} %]" for name, ends in band["errors"].items()}
    of = f"; in brackets: routed against predicted, {band['designs']} designs, {kind}"
    return {**dict.fromkeys(QUANTITIES, ""), **texts, "of": of}


def _range(low: float, high: float) -> str:
    return f"{low:+.0f}" if low == high else f"{low:+.0f} … {high:+.0f}"
