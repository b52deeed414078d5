"""Proofs of `row_buffer`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"WIDTH": 1, "SCALAR_WIDTH": 1, "BEATS": 2})
PROOFS = (
    _prove(),
    _prove({"BEATS": 1}, is_slow=True),
)
FAULT = Edit("row_buffer", "if (ends) scalar_write_q <= !scalar_write_q;", "")
