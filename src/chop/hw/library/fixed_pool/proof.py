"""Proofs of `fixed_pool`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(
    __file__,
    {
        "IN_WIDTH": 1,
        "IN_FRAC": 1,
        "IN_SIGNED": 0,
        "OUT_WIDTH": 1,
        "OUT_FRAC": 1,
        "OUT_SIGNED": 0,
        "COLUMNS": 2,
        "ROWS": 1,
        "KERNEL_COLUMNS": 2,
        "KERNEL_ROWS": 1,
        "STRIDE_COLUMNS": 2,
        "STRIDE_ROWS": 1,
    },
)
PROOFS = (*(_prove({"IS_MAXIMUM": maximum}, is_slow=True) for maximum in (1, 0)),)
FAULT = Edit("fixed_pool", "is_first || is_larger ? code : old", "is_larger ? code : old")
