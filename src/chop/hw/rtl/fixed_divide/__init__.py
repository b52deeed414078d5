"""Division by constants: part of averages and of the hard activations."""

from __future__ import annotations

from collections.abc import Sequence

from chop.hw.golden import Fixed

DIVIDE_LATENCY = 2
"""Cycles of `fixed_divide`: the dividend and the product are registers."""
MULTIPLIER_BITS = 18
"""Of an operand of a multiplier block."""


def divide_multipliers(width: int, frac_width: int, divisors: Sequence[int], out: Fixed) -> int:
    """Multiplier blocks of one lane of `fixed_divide`; none where all it does is to shift.

    >>> divide_multipliers(12, 4, [9], Fixed(8, 4)), divide_multipliers(12, 4, [4], Fixed(8, 4))
    (2, 0)
    """
    if len(divisors) == 1 and not divisors[0] & (divisors[0] - 1):
        return 0
    shift = out.frac_width + 1 - frac_width
    bits = max(divisors).bit_length()
    raised = max(width + shift, 1) + bits + 1
    reciprocal = raised + bits + 1 - min(divisors).bit_length()
    blocks = [-(-size // MULTIPLIER_BITS) for size in (raised, reciprocal)]
    return blocks[0] * blocks[1]
