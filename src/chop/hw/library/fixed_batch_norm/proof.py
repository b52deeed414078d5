"""Proofs of `fixed_batch_norm`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(
    __file__,
    {
        "IN_WIDTH": 2,
        "IN_FRAC": 1,
        "W_WIDTH": 2,
        "W_FRAC": 1,
        "B_WIDTH": 2,
        "B_FRAC": 0,
        "OUT_WIDTH": 3,
        "OUT_FRAC": 1,
    },
)
PROOFS = (_prove(),)
FAULT = Edit("fixed_batch_norm", "bias_q <<< BIAS_SHIFT", "bias_q")
