"""Shared memory for the buffers of a native program.

Most buffers of a step are read soon after they are written. Those that are never needed at the same
time share memory, which then stays in the cache of the processor.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes of a cache line."""
VIEWS = ("a", "b", "out")
"""Operands of an instruction: those it reads, then the one it writes."""


@dataclass
class _Range:
    """Bytes of a buffer, and the first and the last instruction that use it."""

    begin: int
    size: int
    first: int
    last: int
    place: int = -1


def share_memory(
    instructions: Sequence[Any], buffers: Sequence[Tensor], pinned: Iterable[Tensor]
) -> Tensor:
    """Move buffers that live at different times to the same memory, and return that memory.

    The addresses in `instructions` change. Buffers in `pinned` and those that are read before they
    are written stay. A thread may be one instruction ahead of another until both wait, so memory
    changes hands only where a wait lies between.
    """
    fixed = {_begin(x) for x in pinned}
    ranges = {_begin(x): _Range(_begin(x), x.nbytes, -1, -1) for x in buffers}
    movable = [r for r in _used(instructions, ranges) if r.begin not in fixed]
    waits = list(accumulate((int(each.waits) for each in instructions), initial=0))
    size, live = 0, list[_Range]()
    for each in sorted(movable, key=lambda r: r.first):
        live = [x for x in live if waits[each.first + 1] == waits[min(x.last + 1, each.first + 1)]]
        each.place = _lowest_gap(live, each.size)
        live.append(each)
        size = max(size, each.place + each.size)
    memory = torch.zeros(size // 4 + ALIGNMENT)
    start = -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT
    _move(instructions, movable, start)
    return memory


def _begin(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _used(instructions: Sequence[Any], ranges: dict[int, _Range]) -> list[_Range]:
    """Note the use of each range; return those that are written before they are read."""
    find, early = _finder(list(ranges.values())), set[int]()
    for index, each in enumerate(instructions):
        for name in VIEWS:
            owner = find(getattr(each, name).at)
            if owner is None:
                continue
            if owner.first < 0:
                owner.first = index
                if name != "out":
                    early.add(owner.begin)
            owner.last = index
    return [r for r in ranges.values() if r.first >= 0 and r.begin not in early]


def _finder(ranges: list[_Range]) -> Any:
    """Return a function that finds the range of an address."""
    ordered = sorted(ranges, key=lambda r: r.begin)
    begins = [r.begin for r in ordered]

    def find(address: int | None) -> _Range | None:
        if not address:
            return None
        at = bisect.bisect_right(begins, address) - 1
        owner = ordered[at] if at >= 0 else None
        return owner if owner and address < owner.begin + max(owner.size, 1) else None

    return find


def _lowest_gap(live: list[_Range], size: int) -> int:
    """Return the lowest place for `size` bytes beside the ranges that live."""
    place = 0
    for each in sorted(live, key=lambda r: r.place):
        if place + size <= each.place:
            break
        place = max(place, -(-(each.place + each.size) // ALIGNMENT) * ALIGNMENT)
    return place


def _move(instructions: Sequence[Any], ranges: list[_Range], start: int) -> None:
    """Change the addresses of the ranges to their places behind `start`."""
    find = _finder(ranges)
    for each in instructions:
        for name in VIEWS:
            view = getattr(each, name)
            owner = find(view.at)
            if owner is not None:
                view.at = start + owner.place + view.at - owner.begin
