"""Proofs of `fixed_arithmetic`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(
    __file__,
    {
        "IN_WIDTH": 3,
        "IN_FRAC": 1,
        "IN_1_WIDTH": 3,
        "IN_1_FRAC": 2,
        "OUT_WIDTH": 4,
        "OUT_FRAC": 1,
        "ALPHA": 1,
        "ALPHA_FRAC": 0,
    },
)
PROOFS = (
    *(_prove({"OPERATION": operation}) for operation in range(3)),
    _prove({"OPERATION": 2, "IN_SIGNED": 0, "IN_1_WIDTH": 4, "ROUNDING": 3}, is_slow=True),
    _prove({"OPERATION": 2, "HAS_OPERAND_REGISTER": 1, "IN_1_WIDTH": 2}, is_slow=True),
    _prove({"OPERATION": 0, "ALPHA": 3, "ALPHA_FRAC": 1, "IN_1_SIGNED": 0}),
)
FAULT = Edit(
    "fixed_arithmetic",
    "localparam int SUM_WIDTH =\n      (A_SIGNED + A_SHIFT > B_SIGNED + B_SHIFT ?",
    "localparam int SUM_WIDTH = -1 +\n      (A_SIGNED + A_SHIFT > B_SIGNED + B_SHIFT ?",
)
