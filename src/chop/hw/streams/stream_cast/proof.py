"""Proofs of `stream_cast`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"IN_WIDTH": 5, "IN_FRAC": 3, "OUT_WIDTH": 4, "OUT_FRAC": 1})
PROOFS = (
    _prove(),
    _prove({"IN_SIGNED": 0, "OUT_SIGNED": 0, "ROUNDING": 1, "OVERFLOW": 2}),
)
FAULT = Edit(
    "stream_cast", "data_out_0_valid = data_in_0_valid", "data_out_0_valid = data_out_0_ready"
)
