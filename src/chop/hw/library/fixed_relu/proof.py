"""Proofs of `fixed_relu`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"IN_WIDTH": 4})
PROOFS = (
    _prove(),
    _prove({"IN_SIGNED": 0}),
)
FAULT = Edit("fixed_relu", "is_negative ?", "1'b0 ?")
