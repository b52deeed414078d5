"""Proofs of `stream_concat`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"WIDTH": 1, "IN_BEATS": 2, "IN_1_BEATS": 1})
PROOFS = (
    *(_prove({"IS_SWAPPED": swapped}) for swapped in (0, 1)),
    _prove({"IN_BEATS": 1, "IN_1_BEATS": 3, "WIDTH": 2}, is_slow=True),
)
FAULT = Edit(
    "stream_concat", "? DATA_IN_1_BEATS : DATA_IN_0_BEATS", "? DATA_IN_0_BEATS : DATA_IN_1_BEATS"
)
