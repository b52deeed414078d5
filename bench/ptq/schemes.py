"""The formats that every tool is asked for: all linear layers but the head, symmetric integers.

To add a scheme, add a row: bits of a weight, weights that share a scale (0: a row of the weight),
bits of an activation (0: float), whose scale is that of its token, found when it runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scheme:
    """Weight bits, group, activation bits."""

    bits: int
    group: int
    activation: int = 0


SCHEMES = {
    "W8A8": Scheme(8, 0, 8),
    "W4 group 32": Scheme(4, 32),
    "W4 group 128": Scheme(4, 128),
    "W4A8 group 32": Scheme(4, 32, 8),
    "W3 group 32": Scheme(3, 32),
    "W3 group 128": Scheme(3, 128),
}
