"""What the mapper makes of a cast: looked up in what it made of casts of one lane.

Every bit that a cast gives is chosen by all bits above it. The mapper makes that one wide LUT for
each bit where the path is the slowest of a module, and shares what they have in common where it is
not: a bit may take one LUT or nine, and one bit more above it may halve that. No sum of amounts
says so, a table does. It is measured by bench/area_casts.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chop.hw.arith.golden import Fixed

CHAINLESS = 4
"""Bits of the widest addition that has no carry chain."""
TABLE = Path(__file__).parent / "casts.json"
Group = tuple[str, bool, bool, bool]
"""Where it goes to, whether its result has a sign, whether its input is never negative, and whether
it is rounded by an addition."""


@dataclass(frozen=True)
class Measured:
    """Casts that differ in the width of the result alone."""

    depth: int
    """Bits rounded away, or of the longest other carry chain beside a cast that adds nothing."""
    above: int
    """Bits that the input has above those of the result."""
    luts: tuple[tuple[int, float], ...]
    """Widths of a result, and LUTs of a lane; with those of a skid buffer that it goes to."""

    def at(self, width: int) -> float:
        """LUTs of a lane of so many bits: on the line through both neighbours."""
        place = sum(known <= width for known, _ in self.luts[1:-1])
        (low, few), (high, many) = self.luts[place : place + 2]
        return few + (many - few) / (high - low) * (width - low)


@functools.cache
def measured() -> Mapping[Group, tuple[Measured, ...]]:
    """The table."""
    found: dict[Group, list[Measured]] = {}
    for goes_to, signed, positive, rounded, depth, above, luts in json.loads(TABLE.read_text()):
        group = (goes_to, bool(signed), bool(positive), bool(rounded))
        points = tuple((width, count) for width, count in luts)
        found.setdefault(group, []).append(Measured(depth, above, points))
    return {group: tuple(rows) for group, rows in found.items()}


def look_up(group: Group, depth: int, above: int, width: int) -> float:
    """LUTs of a lane: between the nearest rows above and below, each of the nearest depth."""
    rows = measured()[group]
    known = sorted({row.above for row in rows})
    low = max((a for a in known if a <= above), default=known[0])
    high = min((a for a in known if a >= above), default=known[-1])

    def at(place: int) -> float:
        alike = [row for row in rows if row.above == place]
        return min(alike, key=lambda row: abs(row.depth - depth)).at(width)

    share = (above - low) / (high - low) if high > low else 0.0
    return (1 - share) * at(low) + share * at(high)


@dataclass(frozen=True)
class Cast:
    """A cast of one lane, as far as its LUTs depend on it."""

    width: int
    """Of the input, as a signed number."""
    dropped: int
    """Fractional bits that the result does not have; below 0: that it has besides."""
    out: Fixed
    is_positive: bool = False
    has_half: bool = False
    """What rounds is added before."""

    @property
    def is_rounded(self) -> bool:
        """By an addition."""
        return self.dropped > 0 and self.out.rounding != "floor" and not self.has_half

    @property
    def kept(self) -> int:
        """Bits that are there before the range is looked at."""
        return self.width - self.dropped

    @property
    def above(self) -> int:
        """Bits of the input that the result has no place for, before it is rounded."""
        return self.kept - self.out.width - (not self.out.is_signed)

    @property
    def is_clipped(self) -> bool:
        """Whether the range matters."""
        if self.out.overflow == "wrap":
            return False
        may_be_below = not self.out.is_signed and not self.is_positive
        return may_be_below or self.above + self.is_rounded > 0

    @property
    def bits(self) -> int:
        """Bits of the result; where the range matters, those that differ from each other."""
        if self.above + self.is_rounded <= 0 or not self.is_clipped:
            return self.out.width
        positive = self.is_positive or not self.out.is_signed
        most = self.out.width - (positive and self.out.is_signed)
        own = self.kept + self.is_rounded - positive
        gained = max(-self.dropped, 0)
        return max(min(most, own) - gained + (gained > 0 and self.is_clipped), 1)

    def carry_luts(self) -> int:
        """Of the addition that rounds; what is above a positive number's range is not added to."""
        bits = self.kept + 2 - self.is_positive
        if self.is_positive and self.is_clipped:
            bits = min(bits, self.out.width - self.out.is_signed + 2)
        if not self.is_rounded or self.kept < 2:
            return 0
        return 2 * -(-bits // 2) if bits > CHAINLESS else bits - 1

    def luts(self, other: int, *, into_skid: bool) -> float:
        """LUTs without those of a skid buffer; `other`: the longest carry chain beside it."""
        if self.above + self.is_rounded <= 0 or not self.is_clipped:
            own = self.kept + self.is_rounded - 1
            at_zero = min(self.bits, own) * self.is_clipped  # what is below zero becomes zero
            return (1.0 + into_skid) * self.is_rounded + at_zero * (not into_skid)
        group = (
            "skid" if into_skid else "out",
            self.out.is_signed,
            self.is_positive,
            self.is_rounded,
        )
        depth = self.dropped if self.is_rounded else other
        width = self.bits + (self.is_positive and self.out.is_signed)
        found = look_up(group, depth, max(self.above, 0), width)
        return max(found - self.bits * into_skid, 0.0)
