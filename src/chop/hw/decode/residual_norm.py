"""RMS norm of the residual stream, whose codes may have more than 16 bits.

It is the norm of `chop.nn.quantizers.arithmetic.norm` with another number G of guard bits. Wide
codes have fewer, so that U stays below 2**62. If G is negative, the sum of squares drops bits.
"""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.arithmetic import norm
from chop.nn.quantizers.arithmetic.tables import inverse_root
from chop.nn.quantizers.integer import Integer

LEAST_GUARD = -8
MOST_U = 1 << 62


def guard_bits(number: Integer, size: int, eps: float) -> int:
    """Return the largest even G with which U fits; raise if there is none.

    >>> [guard_bits(Integer(width, 8), 576, 1e-5) for width in (16, 20, 24)]
    [8, 4, -4]
    """
    most = Fraction(size * size << (2 * number.width - 2))
    for guard in range(norm.guard_bits(size), LEAST_GUARD - 1, -2):
        if most * Fraction(2) ** guard + eps_code(eps, size, number.frac_width, guard) < MOST_U:
            return guard
    raise ConfigError(
        f"decode: norms of {size} elements of {number.width} bits with eps = {eps} need sums of "
        "more than 62 bits. Lower residual_width."
    )


def eps_code(eps: float, size: int, frac_width: int, guard: int) -> int:
    """Return eps * N**2 * 2**(2f + G), rounded."""
    return round(Fraction(eps) * size * size * Fraction(2) ** (2 * frac_width + guard))


def normalise(codes: Tensor, number: Integer, eps: float, guard: int) -> Tensor:
    """Normalise a row of codes; the result has 16 fractional bits."""
    size, total = codes.shape[-1], (codes * codes).sum(-1, keepdim=True)
    total = total << guard if guard >= 0 else total >> -guard
    r, k = inverse_root(size * total + eps_code(eps, size, number.frac_width, guard))
    return (size * codes * r) >> ((k - guard // 2).clamp(min=0) + 2)
