"""Formats, streams and numbers that components are tested with: unlike in kind, small in size."""

from __future__ import annotations

import numpy as np

from chop.hw.golden import Fixed, Ints
from chop.hw.stream import Stream

NARROW, BYTE, WIDE = Fixed(3, 1), Fixed(8, 4), Fixed(12, 7)
BIT, COUNT = Fixed(1, 0), Fixed(6, 3, is_signed=False)  # one bit: 0 and -1
DOWN = Fixed(5, 2, rounding="floor")
KINDS = (
    DOWN,
    COUNT,
    Fixed(5, 2, narrow=True, rounding="toward_zero"),
    Fixed(5, 2, overflow="wrap", rounding="nearest_away"),
    Fixed(4, 2, is_signed=False, overflow="wrap", rounding="floor"),
    Fixed(4, -3, rounding="nearest_away"),
    Fixed(1, 1, is_signed=False),
    BIT,
)
"""Results in every way that a number format has."""


def stream(*shape: int, lanes: int = 1, number: Fixed = BYTE) -> Stream:
    """Tensors of `shape`."""
    return Stream(shape, lanes, number)


def codes(number: Fixed, *shape: int, seed: int = 7) -> Ints:
    """Numbers over the whole range of a format, the same ones for a seed."""
    rng = np.random.default_rng(seed)
    return rng.integers(number.low, number.high, shape, endpoint=True)
