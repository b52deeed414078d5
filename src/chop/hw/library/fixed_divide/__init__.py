"""Division by constants: part of averages and of the hard activations."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from chop.hw.arith.golden import Fixed

MULTIPLIER_BITS = 18
"""Bits of an operand of a multiplier block (ECP5: MULT18X18D)."""


@dataclass(frozen=True)
class Division:
    """One lane of `fixed_divide`: numbers of `width` bits over `divisors`, cast to `out`."""

    width: int
    frac_width: int
    divisors: Sequence[int]
    """The constant divisor, or all divisors that the table has reciprocals of."""
    out: Fixed

    @property
    def is_shift(self) -> bool:
        """True if the divisor is a power of two, so that no product is needed."""
        return len(self.divisors) == 1 and not self.divisors[0] & (self.divisors[0] - 1)

    @functools.cached_property
    def _parts(self) -> tuple[list[int], list[int]]:
        """Bits of each part of a dividend; the parts of the constant, all ones if it varies."""
        bits = max(self.divisors).bit_length()
        raised = max(self.width + self.out.frac_width + 1 - self.frac_width, 1) + bits + 1
        top = 1 << (raised + bits)
        factor = -(-top // self.divisors[0])
        factor >>= (factor & -factor).bit_length() - 1  # the zeros below cost nothing
        if len(self.divisors) > 1:
            factor = (1 << (-(-top // min(self.divisors))).bit_length()) - 1
        cut = [range(0, size, MULTIPLIER_BITS) for size in (raised - 1, factor.bit_length())]
        dividend = [min(MULTIPLIER_BITS, raised - 1 - low) for low in cut[0]]
        return dividend, [factor >> low & ((1 << MULTIPLIER_BITS) - 1) for low in cut[1]]

    @property
    def parts(self) -> int:
        """Partial products, each of one multiplier block, of the product with a reciprocal."""
        return 0 if self.is_shift else math.prod(map(len, self._parts))

    @property
    def part_bits(self) -> int:
        """Bits of all parts."""
        dividend, factors = self._parts
        return sum(bits + factor.bit_length() for bits in dividend for factor in factors)

    @property
    def sum_bits(self) -> int:
        """Bits of the sums of the parts: of each but the first, from its place to the highest."""
        dividend, factors = self._parts
        top = sum(dividend) + sum(factor.bit_length() for factor in factors)
        pairs = itertools.product(range(len(dividend)), range(len(factors)))
        return sum(top - (i + j) * MULTIPLIER_BITS for i, j in pairs if i + j)

    @property
    def multipliers(self) -> int:
        """Multiplier blocks; a partial product with one bit or a power of two takes none.

        >>> [Division(12, 4, [by], Fixed(8, 4)).multipliers for by in (9, 4)]
        [1, 0]
        """
        if self.parts < 2:
            return self.parts
        varies = len(self.divisors) > 1
        dividend, factors = self._parts
        wide = sum(bits > 1 for bits in dividend)
        return wide * sum(varies or factor & (factor - 1) != 0 for factor in factors)

    @property
    def latency(self) -> int:
        """Cycles: the dividend, the parts if there are several, and the product."""
        return 3 if self.parts > 1 else 2
