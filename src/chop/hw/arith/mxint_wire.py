"""MXINT on wires: the elements of a block are integers that share an exponent.

A beat has one mantissa for each lane and, above them, the exponent of the block that all of them
are of. The number of an element is mantissa * 2**exponent, in steps of 2**-frac_width; as a code
it is that many steps, so that everything which computes with codes computes with MXINT as with
fixed point. Codes are enough to know the wire: a block has the smallest exponent at which its
largest code fits a mantissa.

Numbers come to MXINT from fixed point, and there are finitely many: of the exponents of the format
`MXInt`, only those that a block of the source can have are on the wire, counted from 0. Where the
mantissa holds every bit of the source, smaller exponents change no number and are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Ints, Rounding
from chop.nn.quantizers.mxint import MXInt

WIDEST_MANTISSA = 24
"""Bits: float32 holds every number of such a format, so that the model has it too."""
WIDEST_CONSTANT = 48
"""Bits of a code of a weight: sums of their magnitudes stay below 2**62."""


@dataclass(frozen=True)
class Mxint(Fixed):
    """Blocks of `block` elements along rows of `row`; the last block of a row may be shorter.

    `width` is that of a code: `mantissa` bits and the largest exponent, `top`.

    >>> number = Mxint(8 + 3, 9, mantissa=8, top=3, block=2, row=4)
    >>> mantissas, exponents = number.to_wire(np.array([[1, 127, -254, 3 << 8]]), 2)
    >>> (mantissas.tolist(), exponents.tolist())
    ([[1, 127], [-32, 96]], [0, 3])
    """

    mantissa: int = 8
    top: int = 0
    block: int = 32
    row: int = 32

    @property
    def low(self) -> int:
        """Smallest code."""
        return -self.high

    @property
    def high(self) -> int:
        """Largest code."""
        return ((1 << (self.mantissa - 1)) - 1) << self.top

    @property
    def lane_width(self) -> int:
        return self.mantissa

    @property
    def shared_width(self) -> int:
        """Bits of the exponent, of which a beat has one."""
        return max(1, self.top.bit_length())

    def holds(self, other: Fixed) -> bool:
        """Return whether a wire of `other` has this format, however it was rounded."""
        same = ("width", "frac_width", "mantissa", "top", "block", "row")
        pairs = ((getattr(self, name), getattr(other, name, None)) for name in same)
        return isinstance(other, Mxint) and all(mine == its for mine, its in pairs)

    def exponents(self, codes: Ints) -> Ints:
        """Return the exponent of each element's block, in the shape (rows, `row`)."""
        rows = np.abs(codes.reshape(-1, self.row))
        largest = np.maximum.reduceat(rows, range(0, self.row, self.block), axis=1)
        exponents = np.clip(_bit_length(largest) - (self.mantissa - 1), 0, self.top)
        return np.repeat(exponents, self.block, axis=1)[:, : self.row]

    def to_wire(self, codes: Ints, lanes: int) -> tuple[Ints, Ints | None]:
        exponents = self.exponents(codes)
        mantissas = codes.reshape(exponents.shape) >> exponents
        return mantissas.reshape(-1, lanes), exponents.reshape(-1, lanes)[:, 0]

    def from_wire(self, elements: Ints, shared: Ints | None) -> Ints:
        assert shared is not None, "an MXINT wire has exponents"
        return elements << shared[:, None]

    def quantize(self, codes: Any, lowest: int) -> Ints:
        """Return fixed-point codes in this format, for any rounding.

        `lowest`: the highest bit of a block from which on its exponent is above 0.
        """
        rows = codes.reshape(-1, self.row)
        largest = np.maximum.reduceat(np.abs(rows), range(0, self.row, self.block), axis=1)
        exponent = np.clip(_bit_length(largest) - 1 - lowest, 0, self.top)
        spread = np.repeat(exponent, self.block, axis=1)[:, : self.row]
        limit, quantized = (1 << (self.mantissa - 1)) - 1, np.zeros(rows.shape, dtype=np.int64)
        for k in np.unique(exponent):
            dropped = lowest + int(k) - (self.mantissa - 2)
            whole = golden.round_shift(rows[spread == k], dropped, self.rounding)
            quantized[spread == k] = np.clip(whole, -limit, limit).astype(np.int64) << int(k)
        return quantized.reshape(codes.shape)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Ints:
        """Return codes to test with: blocks of every exponent, extreme codes, and zeros."""
        limit = (1 << (self.mantissa - 1)) - 1
        mantissas = rng.integers(-limit, limit, shape, endpoint=True)
        ends = rng.choice([-limit, limit, 0], shape)
        rows = np.where(rng.random(shape) < 0.1, ends, mantissas).reshape(-1, self.row)
        blocks = -(-self.row // self.block)
        exponents = rng.integers(0, self.top, (len(rows), blocks), endpoint=True)
        empty = rng.random((len(rows), blocks)) < 0.05
        spread = [np.repeat(e, self.block, axis=1)[:, : self.row] for e in (exponents, empty)]
        codes = np.where(spread[1], 0, rows << spread[0])
        return self.quantize(codes, self.mantissa - 2).reshape(shape)

    def __str__(self) -> str:
        how = "" if self.rounding == "nearest_even" else f" {self.rounding}"
        shared = f"{self.top + 1} exponents of {self.block}"
        return f"MXINT{self.mantissa}.{self.frac_width} {shared}{how}"


def _bit_length(magnitudes: Any) -> Ints:
    """Return the bits of each number from 0 to 2**62; 0 for 0."""
    wide = magnitudes.astype(np.int64)
    halves = wide >> 31, wide & ((1 << 31) - 1)  # a double holds both exactly
    high, low = (np.frexp(half.astype(np.float64))[1] for half in halves)
    bits: Ints = np.where(halves[0] > 0, high + 31, low).astype(np.int64)
    return bits


@dataclass(frozen=True)
class Places:
    """Range of the highest bit of a block's codes, as far as the exponent shows it."""

    lowest: int
    highest: int

    @property
    def top(self) -> int:
        """The largest exponent on the wire."""
        return self.highest - self.lowest


def places(number: MXInt, source: Fixed) -> Places:
    """Return the places of blocks of `source` in the format `number`.

    The format's exponent is that of the highest bit, from -limit to limit. Below `width` - 2 the
    mantissa holds every bit of the source, and one exponent is enough for all places. The last
    place is an exception: larger numbers may saturate there.
    """
    reach = max(-source.low, source.high).bit_length() - 1
    low, high = source.frac_width - number.max_exponent, source.frac_width + number.max_exponent
    first, last = (min(max(place, low), high) for place in (0, max(reach, 0)))
    return Places(max(first, min(number.width - 2, last)), last)


def on_wire(number: MXInt, source: Fixed, row: int) -> Mxint:
    """Return the wire of numbers of `source` in the format `number`, in rows of `row` elements."""
    wire = places(number, source)
    width = number.width + wire.top
    if width > MAX_WIDTH:
        raise ConfigError(
            f"MXINT: blocks of {source} have {wire.top + 1} exponents, which with mantissas of "
            f"{number.width} bits are {width} bits. Allowed: {MAX_WIDTH}. Lower exponent_width, or "
            f"quantise what is brought to MXINT."
        )
    return Mxint(
        width,
        source.frac_width + number.width - 2 - wire.lowest,
        rounding=rounding_of(number),
        mantissa=number.width,
        top=wire.top,
        block=block_of(number, row),
        row=row,
    )


def of_values(number: MXInt, values: Any, row: int) -> tuple[Mxint, Ints]:
    """Return the wire of constants that have the format `number`, and their codes."""
    largest = np.abs(values.reshape(-1, row))
    largest = np.maximum.reduceat(largest, range(0, row, block_of(number, row)), axis=1)
    exponents = np.frexp(largest[largest > 0])[1] - 1
    lowest, highest = (int(exponents.min()), int(exponents.max())) if exponents.size else (0, 0)
    if number.width + highest - lowest > WIDEST_CONSTANT:
        raise ConfigError(
            f"MXINT: blocks of constants have exponents from {lowest} to {highest}. Allowed: "
            f"{WIDEST_CONSTANT - number.width} apart. Lower exponent_width."
        )
    wire = _constant_wire(number, lowest, highest, row)
    return wire, np.ldexp(values, wire.frac_width).astype(np.int64)


def of_format(number: MXInt, row: int) -> Mxint:
    """Return the wire of all constants that the format `number` has, for those written later."""
    last = number.max_exponent
    if number.width + 2 * last > WIDEST_CONSTANT:
        most = (WIDEST_CONSTANT - number.width) // 2
        raise ConfigError(
            f"MXINT: weights written at run time have exponents from {-last} to {last} with "
            f"exponent_width = {number.exponent_width} and width = {number.width}. Allowed: "
            f"exponent_width up to {(most + 1).bit_length()}."
        )
    return _constant_wire(number, -last, last, row)


def _constant_wire(number: MXInt, lowest: int, highest: int, row: int) -> Mxint:
    """Return the wire of constants in blocks with exponents from `lowest` to `highest`."""
    top = highest - lowest
    shape = (number.width, top, block_of(number, row), row)
    rules = (True, False, "saturate", "nearest_even")
    return Mxint(number.width + top, number.width - 2 - lowest, *rules, *shape)  # type: ignore[arg-type]


def block_of(number: MXInt, row: int) -> int:
    """Return the elements of a block in rows of `row`."""
    size = number.tile[1]
    return row if size == -1 else min(size, row)


def rounding_of(number: MXInt) -> Rounding:
    """Return the rounding of the format; raise if hardware does not have it."""
    if number.rounding not in golden.ROUNDINGS:
        allowed = ", ".join(golden.ROUNDINGS)
        raise ConfigError(f"MXINT: rounding = '{number.rounding}'. Allowed: {allowed}.")
    return number.rounding
