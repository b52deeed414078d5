"""Proofs of `skid_buffer`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"WIDTH": 2})
PROOFS = (_prove(),)
FAULT = Edit("skid_buffer", "ready_q ? data_in_0 : held_q;", "data_in_0;")
