"""Proofs of `stream_reorder`."""

from __future__ import annotations

from pathlib import Path

from chop.hw.arith.golden import Fixed
from chop.hw.design.claims import Edit, Proof, packed
from chop.hw.design.stream import Stream
from chop.hw.streams.stream_reorder import Reorder


def _reorder(order: tuple[int, ...], size: int, lanes: int, *, is_slow: bool = False) -> Proof:
    """Return the proof that the elements of a tensor come in `order`."""
    moved = Reorder(Stream((size,), lanes, Fixed(1, 0)), order, (len(order),))
    sizes: dict[str, int | str] = {
        "IN_LANES": lanes,
        "IN_SIZE": size,
        "OUT_SIZE": len(order),
        "MOVES_BEATS": int(moved.moves_beats),
        "ORDER": packed(order, 4),
    }
    files = {f"{memory.name}.mem": memory.words for memory in moved.memories()}
    laws = Path(__file__).parent / "laws.svh"
    return Proof(
        "stream_reorder", sizes, files=files, is_slow=is_slow, sizes={"IN_WIDTH": 1}, text=laws
    )


PROOFS = (
    _reorder((2, 0, 1, 3), 4, 2),
    _reorder((2, 3, 0, 1), 4, 2, is_slow=True),
    _reorder((2, 1, 0), 3, 1, is_slow=True),
)
FAULT = Edit(
    "stream_reorder", "assign data_in_0_ready = full_q != 2'd2;", "assign data_in_0_ready = 1'b1;"
)
