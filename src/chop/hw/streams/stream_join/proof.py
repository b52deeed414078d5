"""Proofs of `stream_join`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"DATA_IN_0_WIDTH": 2, "DATA_IN_1_WIDTH": 3})
PROOFS = (_prove(),)
FAULT = Edit("stream_join", "{data_in_1, data_in_0}", "{data_in_0, data_in_1}")
