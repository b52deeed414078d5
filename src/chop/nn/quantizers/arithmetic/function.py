"""Functions of one element by a table of bounded size, such as GELU, exp and tanh.

For operands of up to 12 bits the table has every code. A result is the function's value (in double
precision) rounded to `data_out`: at most 0.5 of the last place off. For wider operands the high
bits of a code select one of at most 4096 straight lines, and the low bits l are the place on it:

    y = base[high bits] + slope[high bits] * l, exact, rounded to `data_out`.

A table has the fewest lines, a power of two from 16, within 1/4 of the last place before rounding,
so within 0.75 after it. If 4096 lines are not enough, `Lines.error` is their error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.arithmetic.fixed_codes import check_width, decode, encode
from chop.nn.quantizers.integer import Integer

WHOLE_TABLE = 12
"""Most bits of an operand whose codes all have an entry; 2**12 is also the most lines."""
LEAST_LINES = 4  # bits: 16 lines
CLOSE = 0.25
"""Error of the lines before rounding that is good enough, in last places."""
_BEYOND = 2.0**12
"""Last places beyond the range of a saturating result at which a function is cut off."""
_WIDEST = 2.0**40

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Lines:
    """Value at the first code and slope of each line, with `frac_width` fractional bits."""

    bases: tuple[int, ...]
    slopes: tuple[int, ...]
    low_bits: int
    frac_width: int
    error: float
    """Largest error of the lines before rounding, in last places."""


def function_by_table(
    x: Tensor, function: Function, data_in: Integer, data_out: Integer, key: Hashable
) -> Tensor:
    """Return `function` of `x` in integers; `key` names the function in the cache of tables.

    >>> x = torch.tensor([-1.0, 0.5, 3.0])
    >>> function_by_table(x, torch.tanh, Integer(8, 4), Integer(8, 6), "tanh").tolist()
    [-0.765625, 0.46875, 1.0]
    """
    check_width(data_in, "data_in")
    if x.numel() == 0:
        return x.clone()
    places = encode(x, data_in) & (2**data_in.width - 1)
    results = _results(key, _Uncached(function), data_in, data_out).to(x.device, x.dtype)
    return torch.where(x.isnan(), torch.nan, results[places])


class _Uncached:
    """A function that all compare equal, so that a cache ignores it."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Uncached)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=64)
def _results(key: Hashable, uncached: _Uncached, data_in: Integer, data_out: Integer) -> Tensor:
    """Return the result of every code, read as an unsigned number: at most 2**16 doubles."""
    if data_in.width <= WHOLE_TABLE:
        return data_out.quantize(uncached.function(all_numbers(data_in)))
    lines = fit_lines(uncached.function, data_in, data_out)
    exact = line_codes(torch.arange(2**data_in.width), lines)
    return decode(exact, lines.frac_width, data_out, torch.float64)


def line_codes(places: Tensor, lines: Lines) -> Tensor:
    """Return base + slope * l for codes read as unsigned numbers, as codes.

    >>> line_codes(torch.tensor([0, 3, 4]), Lines((16, 24), (2, 1), 2, 4, 0.0)).tolist()
    [16, 22, 24]
    """
    bases, slopes = (torch.tensor(t) for t in (lines.bases, lines.slopes))
    line = places >> lines.low_bits
    return bases[line] + slopes[line] * (places & (2**lines.low_bits - 1))


def all_numbers(number: Integer) -> Tensor:
    """Return the number of every code, in the order of codes read as unsigned numbers."""
    codes = torch.arange(2**number.width)
    if number.is_signed:
        codes = torch.where(codes >= 2 ** (number.width - 1), codes - 2**number.width, codes)
    return codes.double() * 2.0**-number.frac_width


def fit_lines(function: Function, data_in: Integer, data_out: Integer) -> Lines:
    """Return the fewest lines that are close enough, or the most allowed."""
    targets = function(all_numbers(data_in)) * 2.0**data_out.frac_width
    if data_out.overflow == "saturate":
        low, high = (end * 2.0**data_out.frac_width for end in data_out.range)
        targets = targets.clamp(low - _BEYOND, high + _BEYOND)
    else:
        low, high = -_WIDEST, _WIDEST
    if not bool((targets.abs() <= _WIDEST).all()):
        raise ConfigError("a function by lines: its values are too large for a wrapping result.")
    for bits in range(LEAST_LINES, WHOLE_TABLE + 1):
        lines = _lines(targets, bits, data_in.width - bits, data_out.frac_width, (low, high))
        if lines.error <= CLOSE:
            break
    return lines


def _lines(
    targets: Tensor, bits: int, low_bits: int, frac_width: int, ends: tuple[float, float]
) -> Lines:
    """Return 2**bits lines; each is centred between its largest deviations."""
    scale = 2.0 ** (low_bits + 4)
    values = targets.reshape(2**bits, 2**low_bits)
    along = torch.arange(2**low_bits, dtype=torch.float64)
    slopes = ((values[:, -1] - values[:, 0]) * scale / (2**low_bits - 1)).round()
    away = values * scale - slopes[:, None] * along
    bases = ((away.amax(1) + away.amin(1)) / 2).round()
    results = (bases[:, None] + slopes[:, None] * along) / scale
    error = (results.clamp(*ends) - values.clamp(*ends)).abs().max()
    whole, steps = (tuple(int(v) for v in t.tolist()) for t in (bases, slopes))
    return Lines(whole, steps, low_bits, frac_width + low_bits + 4, float(error))
