"""LUTs of a cast, looked up in a table of synthesised casts of one lane.

Every result bit depends on all bits above it. If the cast is on the slowest path of a module, the
mapper makes one wide LUT for each bit; elsewhere it shares logic between bits. A bit takes from one
LUT to nine, and one more bit above it may halve that, so no sum of amounts fits. The table,
`casts.json`, is measured by bench/area_casts.py on ECP5.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chop.hw.arith.golden import Fixed

CHAINLESS = 4
"""Bits of the widest addition that Yosys maps to LUTs without a carry chain (seen in netlists)."""
TABLE = Path(__file__).parent / "casts.json"
CastGroup = tuple[str, bool, bool, bool]
"""Target ("skid" or "out"), signed result, input never negative, rounded by an addition."""


@dataclass(frozen=True)
class MeasuredCasts:
    """Synthesised casts that differ only in the width of the result."""

    depth: int
    """Bits rounded away; without an addition, bits of the longest other carry chain."""
    above: int
    """Bits of the input above those of the result."""
    luts: tuple[tuple[int, float], ...]
    """Width of the result and LUTs of a lane, those of a skid buffer behind it included."""

    def at(self, width: int) -> float:
        """Return the LUTs of a lane of `width` bits, interpolated between both neighbours."""
        place = sum(point <= width for point, _ in self.luts[1:-1])
        (low, few), (high, many) = self.luts[place : place + 2]
        return few + (many - few) / (high - low) * (width - low)


@functools.cache
def measured() -> Mapping[CastGroup, tuple[MeasuredCasts, ...]]:
    """Return the table of synthesised casts."""
    groups: dict[CastGroup, list[MeasuredCasts]] = {}
    for goes_to, signed, positive, rounded, depth, above, luts in json.loads(TABLE.read_text()):
        points = tuple((width, count) for width, count in luts)
        group = (goes_to, bool(signed), bool(positive), bool(rounded))
        groups.setdefault(group, []).append(MeasuredCasts(depth, above, points))
    return {group: tuple(rows) for group, rows in groups.items()}


def look_up(group: CastGroup, depth: int, above: int, width: int) -> float:
    """Return the LUTs of a lane, interpolated over `above` between rows of the nearest depth."""
    rows = measured()[group]
    heights = sorted({row.above for row in rows})
    low = max((a for a in heights if a <= above), default=heights[0])
    high = min((a for a in heights if a >= above), default=heights[-1])

    def at(height: int) -> float:
        alike = [row for row in rows if row.above == height]
        return min(alike, key=lambda row: abs(row.depth - depth)).at(width)

    share = (above - low) / (high - low) if high > low else 0.0
    return (1 - share) * at(low) + share * at(high)


@dataclass(frozen=True)
class MappedCast:
    """Properties of a cast of one lane that its LUTs depend on."""

    width: int
    """Bits of the input as a signed number."""
    dropped: int
    """Fractional bits that the result lacks; negative: bits that it has more."""
    out: Fixed
    is_positive: bool = False
    has_half: bool = False
    """Half a step was added before the cast."""

    @property
    def is_rounded(self) -> bool:
        """True if the cast adds half a step itself."""
        return self.dropped > 0 and self.out.rounding != "floor" and not self.has_half

    @property
    def kept(self) -> int:
        """Bits of the input that are not dropped."""
        return self.width - self.dropped

    @property
    def above(self) -> int:
        """Bits of the unrounded input above those of the result."""
        return self.kept - self.out.width - (not self.out.is_signed)

    @property
    def is_clipped(self) -> bool:
        """True if some input lies outside the result's range and saturates."""
        if self.out.overflow == "wrap":
            return False
        may_be_below = not self.out.is_signed and not self.is_positive
        return may_be_below or self.above + self.is_rounded > 0

    @property
    def bits(self) -> int:
        """Result bits, without those that saturation makes equal to others."""
        if self.above + self.is_rounded <= 0 or not self.is_clipped:
            return self.out.width
        positive = self.is_positive or not self.out.is_signed
        most = self.out.width - (positive and self.out.is_signed)
        own = self.kept + self.is_rounded - positive
        gained = max(-self.dropped, 0)
        return max(min(most, own) - gained + (gained > 0 and self.is_clipped), 1)

    def carry_luts(self) -> int:
        """Return the LUTs of the addition that rounds.

        The chain has the kept bits, a carry-in and a carry-out. Bits above the range of a positive
        number need no adder.
        """
        bits = self.kept + 2 - self.is_positive
        if self.is_positive and self.is_clipped:
            bits = min(bits, self.out.width - self.out.is_signed + 2)
        if not self.is_rounded or self.kept < 2:
            return 0
        return 2 * -(-bits // 2) if bits > CHAINLESS else bits - 1

    def luts(self, other: int, *, into_skid: bool) -> float:
        """Return the LUTs without those of a skid buffer; `other`: bits of the longest other chain.

        A cast that only rounds takes one LUT for the tie, and one more before a skid buffer.
        """
        if self.above + self.is_rounded <= 0 or not self.is_clipped:
            own = self.kept + self.is_rounded - 1
            at_zero = min(self.bits, own) * self.is_clipped  # negative inputs become zero
            return (1.0 + into_skid) * self.is_rounded + at_zero * (not into_skid)
        goes_to = "skid" if into_skid else "out"
        group = (goes_to, self.out.is_signed, self.is_positive, self.is_rounded)
        depth = self.dropped if self.is_rounded else other
        width = self.bits + (self.is_positive and self.out.is_signed)
        luts = look_up(group, depth, max(self.above, 0), width)
        return max(luts - self.bits * into_skid, 0.0)
