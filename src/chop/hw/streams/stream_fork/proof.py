"""Proofs of `stream_fork`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"WIDTH": 2, "BRANCHES": 2})
PROOFS = (
    _prove(),
    _prove({"BRANCHES": 3, "WIDTH": 1}),
)
FAULT = Edit("stream_fork", "data_in_0_ready = &branch_ready", "data_in_0_ready = |branch_ready")
