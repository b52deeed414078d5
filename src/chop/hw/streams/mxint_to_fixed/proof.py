"""Proofs of `mxint_to_fixed`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(
    __file__,
    {
        "IN_WIDTH": 3,
        "IN_FRAC": 2,
        "DATA_IN_0_EXPONENT_WIDTH": 2,
        "DATA_IN_0_TOP": 3,
        "IN_LANES": 2,
        "OUT_WIDTH": 3,
        "OUT_FRAC": 0,
    },
)
PROOFS = (_prove(),)
FAULT = Edit("mxint_to_fixed", "mantissa <<< exponent", "mantissa << 1")
