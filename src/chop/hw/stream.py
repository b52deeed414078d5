"""What flows between components: tensors of fixed-point elements, some lanes per beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chop.errors import ConfigError
from chop.hw.golden import Fixed, Ints


@dataclass(frozen=True)
class Stream:
    """Tensors of `shape` in row-major order, `lanes` consecutive elements per beat, lane 0 low.

    >>> Stream((4, 6), lanes=3, format=Fixed(8, 4)).beats
    8
    """

    shape: tuple[int, ...]
    lanes: int
    format: Fixed

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.shape[-1] % self.lanes:
            raise ConfigError(
                f"Stream: parallelism must divide the last dimension of {self.shape}, "
                f"got {self.lanes}. Allowed: {', '.join(map(str, divisors(self.shape[-1])))}."
            )

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return math.prod(self.shape)

    @property
    def beats(self) -> int:
        """Beats of one tensor."""
        return self.elements // self.lanes

    @property
    def beat_width(self) -> int:
        """Bits of one beat."""
        return self.lanes * self.format.width

    def words(self, codes: Ints) -> list[int]:
        """One integer per beat, as the bits lie on the wire."""
        return pack_words(codes.reshape(-1, self.lanes), self.format.width)

    def codes(self, words: Sequence[int]) -> Ints:
        """Codes of the elements of `words`: the inverse of `words`, flat."""
        width, mask = self.format.width, (1 << self.format.width) - 1
        flat = [(word >> (k * width)) & mask for word in words for k in range(self.lanes)]
        unsigned = np.asarray(flat, dtype=np.int64)
        return _signed(unsigned, width) if self.format.is_signed else unsigned


def divisors(number: int) -> list[int]:
    """Positive divisors in rising order."""
    return [d for d in range(1, number + 1) if number % d == 0]


def pack_words(codes: Ints, width: int) -> list[int]:
    """Rows of codes as integers of `width` bits per element, element 0 in the low bits.

    >>> [hex(w) for w in pack_words(np.array([[1, -1], [2, 3]]), 4)]
    ['0xf1', '0x32']
    """
    rows = np.asarray(codes)
    if rows.dtype != np.int64 or not rows.size:  # numbers of any length
        mask = (1 << width) - 1
        return [sum((int(c) & mask) << (i * width) for i, c in enumerate(row)) for row in rows]
    words: list[int] = []
    for start in range(0, len(rows), _ROWS):
        packed = _packed(rows[start : start + _ROWS], width)
        size, flat = packed.shape[1], packed.tobytes()
        words += [int.from_bytes(flat[k : k + size], "little") for k in range(0, len(flat), size)]
    return words


_ROWS = 4096
"""Of codes that are packed at once, for memory."""


def _packed(rows: Ints, width: int) -> npt.NDArray[np.uint8]:
    """Rows of codes as rows of bytes, lowest first."""
    if width in (8, 16, 32):
        return np.ascontiguousarray(rows).astype(f"<u{width // 8}").view(np.uint8)
    bits = (rows[..., None] >> np.minimum(np.arange(width), 63)) & 1
    return np.packbits(bits.astype(np.uint8).reshape(len(rows), -1), axis=1, bitorder="little")


def storage_bytes(bits: int) -> int:
    """Bytes that Verilator gives a port of so many bits."""
    small = [size for size in (1, 2, 4, 8) if bits <= 8 * size]
    return small[0] if small else 4 * math.ceil(bits / 32)


def to_bytes(codes: Ints, stream: Stream) -> npt.NDArray[np.uint8]:
    """Beats of `codes` as rows of bytes, in the layout of a Verilator port.

    What `codes` repeats (a view along which it does not move) is made once.
    """
    axes = tuple(slice(None) if step else slice(1) for step in codes.strides[:-1])
    once = codes[axes]
    if once.size == codes.size:
        return _beat_bytes(codes, stream)
    rows = _beat_bytes(once, stream)
    beats = rows.reshape(*once.shape[:-1], codes.shape[-1] // stream.lanes, rows.shape[1])
    return np.broadcast_to(beats, (*codes.shape[:-1], *beats.shape[-2:])).reshape(-1, rows.shape[1])


def _beat_bytes(codes: Ints, stream: Stream) -> npt.NDArray[np.uint8]:
    rows = codes.reshape(-1, stream.lanes, 1)
    bits = (rows >> np.arange(stream.format.width)) & 1
    flat = bits.reshape(len(rows), stream.beat_width).astype(np.uint8)
    packed = np.packbits(flat, axis=1, bitorder="little")
    padding = storage_bytes(stream.beat_width) - packed.shape[1]
    return np.pad(packed, ((0, 0), (0, padding)))


def from_bytes(rows: npt.NDArray[np.uint8], stream: Stream) -> Ints:
    """Codes of beats given as rows of bytes: the inverse of `to_bytes`, flat per beat."""
    width = stream.format.width
    bits = np.unpackbits(rows, axis=1, bitorder="little")[:, : stream.beat_width]
    lanes = bits.reshape(len(rows), stream.lanes, width).astype(np.int64)
    unsigned: Ints = (lanes << np.arange(width)).sum(axis=2)
    return _signed(unsigned, width) if stream.format.is_signed else unsigned


def _signed(unsigned: Ints, width: int) -> Ints:
    """Two's complement of `width` bits."""
    codes: Ints = np.where(unsigned >> (width - 1), unsigned - (1 << width), unsigned)
    return codes
