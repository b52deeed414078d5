"""Proofs of `tile_buffer`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"WIDTH": 1, "ROWS": 2, "ROW_BEATS": 2, "GROUP": 1, "REPEATS": 2})
PROOFS = (
    _prove({"GROUP": 2}),
    _prove(is_slow=True),
    _prove({"GROUPS_FIRST": 1}, is_slow=True),
)
FAULT = Edit("tile_buffer", "if (emptied) read_half_q <= !read_half_q;", "")
