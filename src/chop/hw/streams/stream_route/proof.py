"""Proofs of `stream_route`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"WIDTH": 1, "FIRST_BEATS": 2, "SECOND_BEATS": 1})
PROOFS = (_prove(),)
FAULT = Edit("stream_route", "assign data_in_0_ready = &room;", "assign data_in_0_ready = |room;")
