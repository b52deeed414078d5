"""Proofs of `fixed_to_mxint`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(
    __file__,
    {
        "IN_WIDTH": 3,
        "IN_SIZE": 2,
        "IN_LANES": 1,
        "BLOCK_SIZE": 2,
        "LOWEST": 1,
        "HIGHEST": 2,
        "OUT_WIDTH": 2,
        "DATA_OUT_0_EXPONENT_WIDTH": 1,
    },
)
PROOFS = (_prove(is_slow=True),)
FAULT = Edit(
    "fixed_to_mxint", "if (ends) bits_q[bits_write_q] <= seen;", "bits_q[bits_write_q] <= seen;"
)
