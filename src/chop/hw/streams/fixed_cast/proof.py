"""Proofs of `fixed_cast`."""

from __future__ import annotations

from chop.hw.design.claims import VALUE, Edit, Prover

_prove = Prover(__file__, {"IN_WIDTH": 5, "OUT_WIDTH": 4}, VALUE)
PROOFS = (_prove(),)
FAULT = Edit("fixed_cast", "floored[0] && !is_tie", "floored[0]")
