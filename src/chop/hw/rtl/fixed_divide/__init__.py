"""Division by constants: part of averages and of the hard activations."""

from __future__ import annotations

from collections.abc import Sequence

from chop.hw.golden import Fixed

MULTIPLIER_BITS = 18
"""Of an operand of a multiplier block."""


def divide_latency(multipliers: int) -> int:
    """Cycles of `fixed_divide`: the dividend, the parts of a wide product, and the product."""
    return 3 if multipliers > 1 else 2


def divide_multipliers(width: int, frac_width: int, divisors: Sequence[int], out: Fixed) -> int:
    """Multiplier blocks of one lane of `fixed_divide`; none where all it does is to shift.

    `divisors`: the constant, or all that it has reciprocals of.

    >>> divide_multipliers(12, 4, [9], Fixed(8, 4)), divide_multipliers(12, 4, [4], Fixed(8, 4))
    (1, 0)
    """
    if len(divisors) == 1 and not divisors[0] & (divisors[0] - 1):
        return 0
    shift = out.frac_width + 1 - frac_width
    bits = max(divisors).bit_length()
    raised = max(width + shift, 1) + bits + 1
    top = 1 << (raised + bits)
    reciprocals = [-(-top // each) for each in divisors]
    reciprocal = max(reciprocals).bit_length()
    if len(divisors) == 1:  # a constant: the zeros below cost nothing
        reciprocal -= (reciprocals[0] & -reciprocals[0]).bit_length() - 1
    # the highest bit of a dividend is always 0
    blocks = [-(-size // MULTIPLIER_BITS) for size in (raised - 1, reciprocal)]
    return blocks[0] * blocks[1]
