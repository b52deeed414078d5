"""Proofs of `stream_slice`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"WIDTH": 2, "BEATS": 4, "FIRST": 1, "KEPT": 2})
PROOFS = (
    _prove(),
    _prove({"BEATS": 3, "FIRST": 0, "KEPT": 3}),
)
FAULT = Edit("stream_slice", "beat_q < BEAT_WIDTH'(FIRST", "beat_q <= BEAT_WIDTH'(FIRST")
