"""Proofs of `fixed_shift_add`."""

from __future__ import annotations

from chop.hw.arith.golden import Fixed
from chop.hw.design.claims import Edit
from chop.hw.library.constant_product import constant_proof
from chop.hw.library.fixed_shift_add import ShiftAdd

PROOFS = (
    constant_proof(ShiftAdd, [[-6, 4]], [3], 1, Fixed(2, 1)),
    constant_proof(ShiftAdd, [[-6, 4], [-2, 0]], [3, 2], 1, Fixed(1, 1)),
    constant_proof(ShiftAdd, [[5, 2], [0, 0]], [-1, 2], 2, Fixed(1, 1, is_signed=False)),
)
FAULT = Edit("fixed_shift_add", "assign sum = high - b;", "assign sum = high + b;")
