"""Softmax of rows in integers.

    d = max(x) - x                              codes of `data_in`
    e = 65535 * exp(-d)                         by one table, or by the product of two tables
                                                if exp(-d) is not 0 for some d of 256 and more.
    R = 2**33 / sum(e)                          `tables.reciprocal`, once per row.
    y = e * R * 2**-33, rounded to `data_out`

Elements below -2**100 (minus infinity, or a mask) are skipped: their result is exactly 0. Let the
result have f fractional bits and a row n elements. The error in last places (`error_bound`) is 0.5
from rounding, and 2**f times the errors of the exponentials and the reciprocal. Those of the
exponentials are n * 0.5 / 65535 with one table and n * 1.5 / 65535 with two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.arithmetic.fixed_codes import LARGEST_WIDTH, check_width, decode, encode
from chop.nn.quantizers.arithmetic.tables import (
    ENTRIES,
    EXP_ONE,
    RECIPROCAL_ERROR,
    RECIPROCAL_FRAC,
    exp_table,
    reciprocal,
)
from chop.nn.quantizers.integer import Integer

LONGEST_ROW = 1 << 14
MASKED = -(2.0**100)
"""Largest value of a masked element."""
FINE_ONE = 1 << 16
"""Code of 1 in the table of the low 8 bits of a difference: 17 bits."""


def has_two_tables(number: Integer) -> bool:
    """Return True if differences with exp(-d) > 0 have more than 8 bits."""
    return number.width > 8 and number.frac_width > 4


def exponential_tables(number: Integer) -> tuple[tuple[int, ...], ...]:
    """Return the table of exp(-d), or those of the high and the low 8 bits of d.

    The last entry of a single table, 0, serves all larger differences.
    """
    if not has_two_tables(number):
        return (exp_table(1, number.frac_width, EXP_ONE),)
    coarse = exp_table(ENTRIES, number.frac_width, EXP_ONE)
    return coarse, exp_table(1, number.frac_width, FINE_ONE)


def exponential(distance: Tensor, number: Integer) -> Tensor:
    """Return 65535 * exp(-d) for differences of codes of `number`.

    >>> exponential(torch.tensor([0, 16, 300]), Integer(8, 4)).tolist()
    [65535, 24109, 0]
    """
    tables = [torch.tensor(t, device=distance.device) for t in exponential_tables(number)]
    if len(tables) == 1:
        return tables[0][distance.clamp(max=ENTRIES - 1)]
    product = tables[0][distance >> 8] * tables[1][distance & (ENTRIES - 1)]
    return (product + (FINE_ONE >> 1)) >> 16


def softmax_codes(codes: Tensor, number: Integer, keep: Tensor | None = None) -> Tensor:
    """Return softmax over the last dimension, 33 fractional bits; `keep` is False where masked."""
    if keep is None:
        keep = torch.ones_like(codes, dtype=torch.bool)
    top = torch.where(keep, codes, -(1 << LARGEST_WIDTH)).amax(-1, keepdim=True)
    e = torch.where(keep, exponential((top - codes).clamp(min=0), number), 0)
    return e * reciprocal(e.sum(-1, keepdim=True))


def softmax(x: Tensor, dim: int, data_in: Integer, data_out: Integer) -> Tensor:
    """Return the softmax of `x` over `dim`, in integers; values below `MASKED` are masked.

    >>> x = torch.tensor([[1.0, 1.0, float("-inf")], [0.0, 2.0, 2.0]])
    >>> softmax(x, -1, Integer(8, 4), Integer(8, 7, is_signed=False)).tolist()
    [[0.5, 0.5, 0.0], [0.0625, 0.46875, 0.46875]]
    """
    check_settings(data_in, x.shape[dim])
    if x.numel() == 0:
        return x.clone()
    rows = x.movedim(dim, -1)
    codes = encode(rows, data_in)
    exact = softmax_codes(codes, data_in, rows > MASKED)
    y = decode(exact, RECIPROCAL_FRAC, data_out, x.dtype)
    y = torch.where(rows.isnan().any(-1, keepdim=True), math.nan, y)
    return y.movedim(-1, dim)


def check_settings(data_in: Integer, size: int) -> None:
    """Raise if an operand is too wide or a row too long."""
    check_width(data_in, "data_in")
    if size > LONGEST_ROW:
        raise ConfigError(f"softmax: rows of at most {LONGEST_ROW} elements, got {size}.")


def error_bound(data_in: Integer, data_out: Integer, size: int) -> float:
    """Return the largest error of a result, in its last place."""
    of_exp = 1.5 if has_two_tables(data_in) else 0.5
    rounding = 0.5 if data_out.rounding.startswith("nearest") else 1.0
    wrong = size * of_exp / EXP_ONE + RECIPROCAL_ERROR + 2.0**-17
    return float(rounding + 2.0**data_out.frac_width * wrong)
