"""Formats, streams and numbers that components are tested with: different in kind, small in size.

`row_ends` and `matched_ends` drive sums and products to both ends of their range: an accumulator
that is a bit too short then gives a wrong result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.stream import Stream

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
    """Return a stream of tensors of `shape`."""
    return Stream(shape, lanes, number)


def codes(number: Fixed, *shape: int, seed: int = 7) -> Ints:
    """Return numbers over the whole range of a format, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return rng.integers(number.low, number.high, shape, endpoint=True)


MOST_ELEMENTS = 1 << 16
"""Elements of an input up to which more than `LEAST_ENDS` patterns are sent."""
LEAST_ENDS = 4
"""Patterns that are always sent: every pair of ends of two operands."""
MATCHED_ROWS = 4
"""Rows of a matrix whose sums reach furthest up, and down: one of them sets the width."""


def row_ends(streams: Sequence[Stream]) -> tuple[Ints, ...]:
    """Return tensors of extreme codes for each of `streams`.

    Every combination of ends comes first: the largest products and sums of both signs. Then rows
    of both ends in turn, which have the largest variance; rows with one element at the other end,
    which have the largest deviation from the mean; zeros; and rows with one element a step away,
    which have the smallest variance.
    """
    count = max(1, len(streams))
    pairs = [*itertools.product((0, 1), repeat=count), *((k,) * count for k in range(2, 8))]
    largest = max((stream.elements for stream in streams), default=1)
    patterns = pairs[: max(LEAST_ENDS, MOST_ELEMENTS // largest)]
    return tuple(
        np.stack([_pattern(stream, pair[k]) for pair in patterns])
        for k, stream in enumerate(streams)
    )


def _pattern(stream: Stream, kind: int) -> Ints:
    """Return one tensor, of rows like each other, of one of the patterns of `row_ends`."""
    low, high, size = stream.format.low, stream.format.high, stream.shape[-1]
    step = high & -high if low == -high else 1  # of the largest codes of a block format
    first = np.arange(size) == 0
    row = (
        np.full(size, low),
        np.full(size, high),
        np.where(np.arange(size) % 2, high, low),
        np.where(first, low, high),
        np.where(first, high, low),
        np.full(size, max(low, 0)),
        np.where(first, min(max(low, 0) + 1, high), max(low, 0)),
        np.where(first, max(high - step, low), high),
    )[kind]
    return np.broadcast_to(row.astype(np.int64), stream.shape)


def matched_ends(weight: Ints, starts: Ints, number: Fixed) -> Ints:
    """Return vectors of codes whose products with rows of `weight` all have one sign.

    `starts`: what each row's sum starts from, in steps of a product. The rows are those whose sums
    reach furthest up and furthest down.
    """
    bits = golden.bits_of(weight) + number.signed_width + weight.shape[1].bit_length()
    exact = golden.wide(weight, bits)
    corners = np.stack([exact * end for end in (number.low, number.high)])
    vectors = []
    for sign in (1, -1):
        reach = sign * ((sign * corners).max(axis=0).sum(axis=1) * sign + starts)
        rows = np.argsort(reach, kind="stable")[::-1][:MATCHED_ROWS]
        vectors.append(np.where(sign * weight[rows] > 0, number.high, number.low))
    return np.concatenate(vectors).astype(np.int64)


def in_tensors(vectors: Ints, stream: Stream) -> Ints:
    """Return tensors of `stream` whose vectors are `vectors`, again from the first at the end."""
    each = stream.elements // stream.shape[-1]
    tensors = -(-len(vectors) // each)
    rows = np.arange(tensors * each) % len(vectors)
    return vectors[rows].reshape(tensors, *stream.shape)
