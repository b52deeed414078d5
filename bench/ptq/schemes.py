"""The formats that every tool is asked for: all linear layers but the head.

To add a scheme of symmetric integers, add a row to SCHEMES: bits of a weight, weights that share a
scale (0: a row of the weight), bits of an activation (0: float), whose scale is that of its token,
found when it runs. BLOCKS has weights alone in formats of blocks; each tool translates its name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scheme:
    """Weight bits, group, activation bits; `form` names a format of blocks."""

    bits: int
    group: int
    activation: int = 0
    form: str = ""


SCHEMES = {
    "W8A8": Scheme(8, 0, 8),
    "W4 group 32": Scheme(4, 32),
    "W4 group 128": Scheme(4, 128),
    "W4A8 group 32": Scheme(4, 32, 8),
    "W3 group 32": Scheme(3, 32),
    "W3 group 128": Scheme(3, 128),
}
BLOCKS = {
    name: Scheme(4, group, form=name)
    for name, group in {"MXINT4": 32, "MXFP4": 32, "NVFP4": 16, "Q4_K": 32}.items()
}


def name_of(scheme: Scheme) -> str:
    """Return the name of a scheme."""
    return next(name for name, each in {**SCHEMES, **BLOCKS}.items() if each == scheme)
