"""Streams between components: tensors of fixed-point elements, some lanes per beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed, Ints


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
        return self.lanes * self.format.lane_width + self.format.shared_width

    def words(self, codes: Ints) -> list[int]:
        """Return one integer per beat, with the bits in the order of the wire."""
        elements, shared = self.format.to_wire(codes, self.lanes)
        words = pack_words(elements, self.format.lane_width)
        above = np.zeros(len(words), dtype=np.int64) if shared is None else shared
        place = self.lanes * self.format.lane_width
        return [word | int(more) << place for word, more in zip(words, above, strict=True)]

    def codes(self, words: Sequence[int]) -> Ints:
        """Return the codes of the elements of `words`: the inverse of `words`, flat."""
        size, width = storage_bytes(self.beat_width), self.beat_width
        mask = (1 << width) - 1
        rows = b"".join((word & mask).to_bytes(size, "little") for word in words)
        return from_bytes(np.frombuffer(rows, np.uint8).reshape(-1, size), self).reshape(-1)


def divisors(number: int) -> list[int]:
    """Return the positive divisors in rising order."""
    return [d for d in range(1, number + 1) if number % d == 0]


def pack_words(codes: Ints, width: int) -> list[int]:
    """Return rows of codes as integers of `width` bits per element, element 0 in the low bits.

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
"""Rows of codes that are packed at once, to bound memory."""


def _packed(rows: Ints, width: int) -> npt.NDArray[np.uint8]:
    """Return rows of codes as rows of bytes, lowest first."""
    if width in (8, 16, 32):
        return np.ascontiguousarray(rows).astype(f"<u{width // 8}").view(np.uint8)
    bits = (rows[..., None] >> np.minimum(np.arange(width), 63)) & 1
    return np.packbits(bits.astype(np.uint8).reshape(len(rows), -1), axis=1, bitorder="little")


def storage_bytes(bits: int) -> int:
    """Return the bytes of a Verilator port of `bits` bits."""
    small = [size for size in (1, 2, 4, 8) if bits <= 8 * size]
    return small[0] if small else 4 * math.ceil(bits / 32)


def to_bytes(codes: Ints, stream: Stream) -> npt.NDArray[np.uint8]:
    """Return beats of `codes` as rows of bytes, in the layout of a Verilator port.

    Codes that a view repeats are converted once.
    """
    axes = tuple(slice(None) if step else slice(1) for step in codes.strides[:-1])
    once = codes[axes]
    if once.size == codes.size:
        return _beat_bytes(codes, stream)
    rows = _beat_bytes(once, stream)
    beats = rows.reshape(*once.shape[:-1], codes.shape[-1] // stream.lanes, rows.shape[1])
    return np.broadcast_to(beats, (*codes.shape[:-1], *beats.shape[-2:])).reshape(-1, rows.shape[1])


def _beat_bytes(codes: Ints, stream: Stream) -> npt.NDArray[np.uint8]:
    elements, shared = stream.format.to_wire(codes, stream.lanes)
    flat = _bits(elements, stream.format.lane_width)
    if shared is not None:
        flat = np.concatenate([flat, _bits(shared[:, None], stream.format.shared_width)], axis=1)
    packed = np.packbits(flat, axis=1, bitorder="little")
    padding = storage_bytes(stream.beat_width) - packed.shape[1]
    return np.pad(packed, ((0, 0), (0, padding)))


def _bits(rows: Ints, width: int) -> npt.NDArray[np.uint8]:
    """Return the bits of each row, element 0 first, the lowest of an element first."""
    bits = (rows[:, :, None] >> np.arange(width)) & 1
    return bits.reshape(len(rows), rows.shape[1] * width).astype(np.uint8)


def from_bytes(rows: npt.NDArray[np.uint8], stream: Stream) -> Ints:
    """Return the codes of beats from rows of bytes: the inverse of `to_bytes`, flat per beat."""
    number, place = stream.format, stream.lanes * stream.format.lane_width
    bits = np.unpackbits(rows, axis=1, bitorder="little")[:, : stream.beat_width]
    unsigned = _numbers(bits[:, :place], number.lane_width)
    sign = (unsigned >> (number.lane_width - 1)) << number.lane_width
    elements = unsigned - sign if number.is_signed else unsigned
    shared = _numbers(bits[:, place:], number.shared_width)[:, 0] if number.shared_width else None
    return number.from_wire(elements, shared)


def _numbers(bits: npt.NDArray[np.uint8], width: int) -> Ints:
    """Return the unsigned numbers of `width` bits in each row of bits."""
    lanes = bits.reshape(len(bits), bits.shape[1] // width, width).astype(np.int64)
    numbers: Ints = (lanes << np.arange(width)).sum(axis=2)
    return numbers
