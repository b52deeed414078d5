"""Tables of 256 entries: the reciprocal and the inverse root of a mantissa, the exponential.

A table holds the function at the middle of each interval, right to 9 bits; one Newton step makes it
16. The mantissa is cut off after its 16th fractional bit.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from chop.nn.quantizers.arithmetic.fixed_codes import bit_length

ENTRIES = 256
MANTISSA_FRAC = 16
"""Fractional bits of a mantissa and of the tables' reciprocals and inverse roots."""
EXP_ONE = 2**16 - 1
"""Code of 1 among exponentials: the largest number of 16 bits."""
RECIPROCAL_FRAC = 33
"""Fractional bits of 1 / sum."""
ROOT_FRAC = 18
"""Fractional bits of an inverse root's mantissa."""
RECIPROCAL_ERROR = 2.0**-16
"""Largest relative error of `reciprocal` before it is cut off at `RECIPROCAL_FRAC`."""
ROOT_ERROR = 2.0**-16
"""Largest relative error of `inverse_root`."""


def reciprocal_table() -> tuple[int, ...]:
    """Return 2**16 / m for mantissas m from 1 to 2, by the first 8 fractional bits of m."""
    places = [2 * ENTRIES + 1 + 2 * i for i in range(ENTRIES)]  # the middles, in 512ths
    return tuple((2 * (2**16 * 2 * ENTRIES) + d) // (2 * d) for d in places)


def root_table() -> tuple[int, ...]:
    """Return 2**16 / sqrt(m): m from 1 to 2 in the first half, from 2 to 4 in the second."""
    half = ENTRIES // 2
    places = [(ENTRIES + 1 + 2 * i) << odd for odd in (0, 1) for i in range(half)]  # in 256ths
    return tuple((math.isqrt(4 * 2**32 * ENTRIES // d) + 1) // 2 for d in places)


@functools.lru_cache
def exp_table(step: int, frac_width: int, one: int) -> tuple[int, ...]:
    """Return one * exp(-x) for x = i * step * 2**-frac_width."""
    return tuple(round(one * math.exp(-math.ldexp(i * step, -frac_width))) for i in range(ENTRIES))


@functools.lru_cache
def _tensors() -> tuple[Tensor, Tensor]:
    return torch.tensor(reciprocal_table()), torch.tensor(root_table())


def reciprocal(total: Tensor) -> Tensor:
    """Return 2**33 / total for sums of 2**15 and more, 0 for 0; `total` is below 2**33.

    p is the place of the highest bit of `total`, m = total / 2**p its mantissa of 16 fractional
    bits, r the table's entry for the first 8 of them. Then r * (2 - m * r) is 1 / m.

    >>> reciprocal(torch.tensor([0, 65535, 3 * 65535])).tolist()
    [0, 131073, 43691]
    """
    p = (bit_length(total) - 1).clamp(min=0)
    mantissa = (total << MANTISSA_FRAC) >> p
    r = _tensors()[0].to(total.device)[(mantissa >> 8) & (ENTRIES - 1)]
    correction = ((1 << 33) - mantissa * r) >> 15
    return torch.where(total > 0, (r * correction) >> p, 0)


def inverse_root(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return (r, k) with 1 / sqrt(u) = r * 2**(-18 - k), for u from 0 to 2**62; (0, 0) for 0.

    m = u / 4**k, from 1 to 4, is cut off behind 16 fractional bits; s is the table's entry for its
    first 7 bits below the highest. Then s * (3 - m * s * s) / 2 is 1 / sqrt(m).

    >>> [part.tolist() for part in inverse_root(torch.tensor([0, 1, 16, 2]))]
    [[0, 262142, 262142, 185363], [0, 0, 2, 0]]
    """
    p = (bit_length(u) - 1).clamp(min=0)
    k = p >> 1
    right = (2 * k - MANTISSA_FRAC).clamp(min=0)
    mantissa = (u >> right) << (MANTISSA_FRAC - 2 * k).clamp(min=0)
    odd = p & 1
    s = _tensors()[1].to(u.device)[(odd << 7) | ((mantissa >> (9 + odd)) & 127)]
    square = (s * s) >> 14
    correction = ((3 << 34) - mantissa * square) >> 16
    r = torch.where(u > 0, (s * correction) >> 17, 0)
    return r, k
