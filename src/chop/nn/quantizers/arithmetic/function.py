"""Functions of one element by a table of bounded size: GELU, SiLU, exp, tanh, sigmoid …

Up to 12 bits of operand the table has every code, and a result is the function's own value (in
double precision) brought to `data_out`: at most 0.5 of the last place away. Above that the high
bits of a code choose one of at most 4096 straight lines, the low bits l go along it:

    y = base[high bits] + slope[high bits] * l, exact, brought to `data_out`

A table has the fewest lines, a power of two from 16, that come within 1/4 of the last place before
rounding: within 0.75 after it. Where not even 4096 do, `Lines.error` says how far they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.arithmetic.codes import check_width, decode, encode
from chop.nn.quantizers.integer import Integer

WHOLE_TABLE = 12
"""Bits of operand up to which every code has its entry; and bits of the most lines."""
LEAST_LINES = 4
CLOSE = 0.25
"""Of the last place: what lines may be away from the function before rounding."""
_BEYOND = 2.0**12
"""Last places beyond the range of a saturating result at which a function is cut off."""
_WIDEST = 2.0**40

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Lines:
    """Of each line its value at the first code and its step, with `frac_width` fractional bits."""

    bases: tuple[int, ...]
    slopes: tuple[int, ...]
    low_bits: int
    frac_width: int
    error: float
    """How far the lines are from the function at most, in last places, before rounding."""


def function_by_table(
    x: Tensor, function: Function, data_in: Integer, data_out: Integer, key: Hashable
) -> Tensor:
    """`function` of `x` in integers; `key` names the function, so that its table is made once.

    >>> x = torch.tensor([-1.0, 0.5, 3.0])
    >>> function_by_table(x, torch.tanh, Integer(8, 4), Integer(8, 6), "tanh").tolist()
    [-0.765625, 0.46875, 1.0]
    """
    check_width(data_in, "data_in")
    if x.numel() == 0:
        return x.clone()
    places = encode(x, data_in) & (2**data_in.width - 1)
    results = _results(key, _Held(function), data_in, data_out).to(x.device, x.dtype)
    return torch.where(x.isnan(), torch.nan, results[places])


class _Held:
    """A function that is no part of the key of a cache."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=64)
def _results(key: Hashable, held: _Held, data_in: Integer, data_out: Integer) -> Tensor:
    """The result for every code, read as an unsigned number: at most 2**16 doubles."""
    if data_in.width <= WHOLE_TABLE:
        return data_out.quantize(held.function(all_numbers(data_in)))
    lines = fit_lines(held.function, data_in, data_out)
    exact = line_codes(torch.arange(2**data_in.width), lines)
    return decode(exact, lines.frac_width, data_out, torch.float64)


def line_codes(places: Tensor, lines: Lines) -> Tensor:
    """base + slope * l for codes read as unsigned numbers, with `lines.frac_width` fractional bits.

    >>> line_codes(torch.tensor([0, 3, 4]), Lines((16, 24), (2, 1), 2, 4, 0.0)).tolist()
    [16, 22, 24]
    """
    bases, slopes = (torch.tensor(t) for t in (lines.bases, lines.slopes))
    line = places >> lines.low_bits
    return bases[line] + slopes[line] * (places & (2**lines.low_bits - 1))


def all_numbers(number: Integer) -> Tensor:
    """The number of every code, in the order of codes read as unsigned numbers."""
    codes = torch.arange(2**number.width)
    if number.is_signed:
        codes = torch.where(codes >= 2 ** (number.width - 1), codes - 2**number.width, codes)
    return codes.double() * 2.0**-number.frac_width


def fit_lines(function: Function, data_in: Integer, data_out: Integer) -> Lines:
    """The fewest lines that are close enough, or the most that there may be."""
    wanted = function(all_numbers(data_in)) * 2.0**data_out.frac_width
    if data_out.overflow == "saturate":
        low, high = (end * 2.0**data_out.frac_width for end in data_out.range)
        wanted = wanted.clamp(low - _BEYOND, high + _BEYOND)
    else:
        low, high = -_WIDEST, _WIDEST
    if not bool((wanted.abs() <= _WIDEST).all()):
        raise ConfigError("a function by lines: its values are too large for a wrapping result.")
    for bits in range(LEAST_LINES, WHOLE_TABLE + 1):
        lines = _lines(wanted, bits, data_in.width - bits, data_out.frac_width, (low, high))
        if lines.error <= CLOSE:
            break
    return lines


def _lines(
    wanted: Tensor, bits: int, low_bits: int, frac_width: int, ends: tuple[float, float]
) -> Lines:
    """2**bits lines; each goes through the middle between its largest deviations."""
    scale = 2.0 ** (low_bits + 4)
    values = wanted.reshape(2**bits, 2**low_bits)
    along = torch.arange(2**low_bits, dtype=torch.float64)
    slopes = ((values[:, -1] - values[:, 0]) * scale / (2**low_bits - 1)).round()
    away = values * scale - slopes[:, None] * along
    bases = ((away.amax(1) + away.amin(1)) / 2).round()
    given = (bases[:, None] + slopes[:, None] * along) / scale
    error = (given.clamp(*ends) - values.clamp(*ends)).abs().max()
    made = [tuple(int(v) for v in t.tolist()) for t in (bases, slopes)]
    return Lines(made[0], made[1], low_bits, frac_width + low_bits + 4, float(error))
