"""Proofs of `fixed_table_sum`."""

from __future__ import annotations

from chop.hw.arith.golden import Fixed
from chop.hw.design.claims import Edit
from chop.hw.library.constant_product import constant_proof
from chop.hw.library.fixed_table_sum import TableSum

PROOFS = (
    constant_proof(TableSum, [[-6, 4, 1, 7]], [3], 2, Fixed(2, 1), is_slow=True),
    constant_proof(TableSum, [[5, 2], [0, 0]], [-1, 2], 2, Fixed(1, 1, is_signed=False)),
)
FAULT = Edit("fixed_table_sum", "so_far[WIDTH-1:LOW] + term", "so_far[WIDTH-1:LOW] - term")
