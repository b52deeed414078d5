"""Host side of a reload: writes the weights of a design over its AXI4-Lite port.

Needs Python alone, and the files of a hardware directory. `read(address)` returns a word of the
port, `write(address, value)` returns False if the port answers with an error:

    words = with_checksum(own_pieces(Path("hardware")))
    reload_weights(words, read, write)

New weights for an emitted design are in `reload/weights.mem`: `mase emit MODEL --reload-into DIR`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

CONTROL, STATUS, PIECE, CHECKSUM = 0x04, 0x08, 0x24, 0x28
RUN, BEGIN, ABORT = 1, 4, 8
"""Bits of the control word."""
WAITING, LOADING, WRONG_CHECKSUM, NOT_WHOLE = 8, 16, 32, 64
"""Bits of the status word."""
PIECE_BITS = 32
PATIENCE = 10_000
"""Reads of the status until the last tensor must have left."""

Access = tuple[str, int, int]
"""An access of the port: "read" or "write", address, value."""
Steps = Generator[Access, int, None]
"""Accesses; each is answered with the word that was read, or 1 if the write was taken, else 0."""


class ReloadError(Exception):
    """A design that did not take new weights."""


def own_pieces(hardware: Path) -> list[int]:
    """Return the pieces of the weights that a design was emitted with, in their order."""
    memories = json.loads((hardware / "design.json").read_text())["reload"]["memories"]
    pieces = []
    for row in memories:
        text = (hardware / "mem" / f"{row['stage']}_{row['memory']}.mem").read_text()
        for word in (int(line, 16) for line in text.split()):
            shifts = range(0, PIECE_BITS * row["pieces_per_word"], PIECE_BITS)
            pieces += [word >> shift & (1 << PIECE_BITS) - 1 for shift in shifts]
    return pieces


def read_words(path: Path) -> list[int]:
    """Return the words of a file: one hexadecimal number per line."""
    return [int(line, 16) for line in path.read_text().split()]


def with_checksum(pieces: Sequence[int]) -> list[int]:
    """Return pieces of weights and their checksum behind them."""
    return [*pieces, zlib.crc32(b"".join(piece.to_bytes(4, "little") for piece in pieces))]


def begin_steps(patience: int = PATIENCE) -> Steps:
    """Begin a reload and wait until the design is empty.

    If it is not after `patience` reads, take the reload back and raise an error.
    """
    control = (yield ("read", CONTROL, 0)) & RUN
    yield ("write", CONTROL, control | BEGIN)
    for _ in range(patience):
        status = yield ("read", STATUS, 0)
        if status & LOADING:
            return
    yield ("write", CONTROL, control | ABORT)
    raise ReloadError(
        f"the design is not empty after {patience} reads of its status ({status:#x}): results are "
        f"not taken, a tensor is not complete, or run is 0"
    )


def reload_steps(words: Sequence[int], patience: int = PATIENCE) -> Steps:
    """Write `words`, pieces of weights and their checksum, and check that the design took them."""
    yield from begin_steps(patience)
    for number, word in enumerate(words):
        if not (yield ("write", PIECE, word)):
            raise ReloadError(f"word {number} of {len(words)} was refused: {number} were expected")
    status = yield ("read", STATUS, 0)
    if status & WRONG_CHECKSUM:
        raise ReloadError(f"the checksum {words[-1]:08x} is wrong: the design takes no input")
    if status & (LOADING | NOT_WHOLE):
        pieces = yield ("read", PIECE, 0)
        raise ReloadError(f"the design took {pieces} pieces and waits for more")
    inside = yield ("read", CHECKSUM, 0)
    if inside != words[-1]:
        raise ReloadError(f"the design has the weights {inside:08x}, not {words[-1]:08x}")


def abort_steps() -> Steps:
    """End a reload; without a piece written, the design runs on with the weights that it has."""
    control = (yield ("read", CONTROL, 0)) & RUN
    yield ("write", CONTROL, control | ABORT)


def reload_weights(
    words: Sequence[int],
    read: Callable[[int], int],
    write: Callable[[int, int], bool],
    patience: int = PATIENCE,
) -> None:
    """Write `words`, pieces of weights and their checksum; raise unless the design took them."""
    steps = reload_steps(words, patience)
    answer = None
    while True:
        try:
            kind, address, value = next(steps) if answer is None else steps.send(answer)
        except StopIteration:
            return
        answer = read(address) if kind == "read" else int(write(address, value))
