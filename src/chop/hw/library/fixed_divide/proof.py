"""Proofs of `fixed_divide`."""

from __future__ import annotations

from chop.hw.design.claims import VALUE, Edit, Prover

_prove = Prover(
    __file__, {"IN_WIDTH": 6, "IN_FRAC": 2, "DIVISOR": 6, "OUT_WIDTH": 4, "OUT_FRAC": 1}, VALUE
)
PROOFS = (
    *(_prove({"DIVISOR": d, "ROUNDING": r}) for d, r in ((3, 0), (6, 3))),
    _prove({"DIVISOR": 4, "IS_CHOSEN": 1}),
    _prove({"HAS_PARTS": 1, "PART": 5}),
    _prove({"HAS_PARTS": 1, "PART": 5, "IS_CHOSEN": 1}, is_slow=True),
)
FAULT = Edit("fixed_divide", "has_remainder || has_lost_q[LATENCY-1]", "1'b0")
