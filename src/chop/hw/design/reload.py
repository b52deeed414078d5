"""Weights that are written at run time: the order of the pieces, and their checksum.

Memories of the layers `Design.reloaded` are written through one port, in pieces of 32 bits. The
pieces of all memories are numbered: memory by memory, word by word, the low bits of a word first.
The last piece of a word has zeros above the word. The checksum is the CRC-32 of zlib over the bytes
of all pieces, the low byte of each first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chop.hw.design.component import Memory

PIECE_BITS = 32
"""Bits of a piece: a word of AXI4-Lite."""
PORT = "load"
"""Prefix of the port of a top module that writes memories."""


@dataclass(frozen=True)
class ReloadedMemory:
    """A streamed memory of `stage`, with the number of its first piece."""

    stage: str
    memory: Memory
    first: int

    @property
    def pieces_per_word(self) -> int:
        """Pieces of a word."""
        return -(-self.memory.width // PIECE_BITS)

    @property
    def count(self) -> int:
        """Pieces of the memory."""
        return self.pieces_per_word * len(self.memory.words)

    def pieces(self) -> Iterator[int]:
        """Yield the pieces in their order."""
        for word in self.memory.words:
            for number in range(self.pieces_per_word):
                yield word >> number * PIECE_BITS & (1 << PIECE_BITS) - 1


@dataclass(frozen=True)
class ReloadPort:
    """Size of the port that writes memories: all pieces, and the checksum of the first weights."""

    pieces: int
    crc: int

    @property
    def index_width(self) -> int:
        """Bits of the number of a piece."""
        return max(1, (self.pieces - 1).bit_length())


def numbered(named: Sequence[tuple[str, Memory]]) -> tuple[ReloadedMemory, ...]:
    """Return memories, each with the name of its stage, with the numbers of their pieces."""
    listed, first = [], 0
    for stage, memory in named:
        listed.append(ReloadedMemory(stage, memory, first))
        first += listed[-1].count
    return tuple(listed)


def all_pieces(memories: Sequence[ReloadedMemory]) -> list[int]:
    """Return the pieces of all memories in the order of their numbers."""
    return [piece for each in memories for piece in each.pieces()]


def checksum(pieces: Sequence[int]) -> int:
    """Return the CRC-32 of pieces.

    >>> f"{checksum([0x64636261]):08x}"  # that of the text "abcd"
    'ed82cd11'
    """
    return zlib.crc32(b"".join(piece.to_bytes(4, "little") for piece in pieces))


def reload_port(memories: Sequence[ReloadedMemory]) -> ReloadPort | None:
    """Return the size of the port that writes `memories`; None without memories."""
    pieces = all_pieces(memories)
    return ReloadPort(len(pieces), checksum(pieces)) if pieces else None
