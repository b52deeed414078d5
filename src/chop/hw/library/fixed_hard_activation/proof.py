"""Proofs of `fixed_hard_activation`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"IN_WIDTH": 5, "IN_FRAC": 1, "OUT_WIDTH": 4, "OUT_FRAC": 1})
PROOFS = (
    _prove(),
    _prove({"IS_SWISH": 1}, is_slow=True),
)
FAULT = Edit("fixed_hard_activation", "raised < 0 ? '0", "raised < 0 ? raised")
