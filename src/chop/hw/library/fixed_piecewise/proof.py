"""Proofs of `fixed_piecewise`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover, packed

LINES = (105, 18, 77, 3)
_prove = Prover(
    __file__,
    {
        "IN_WIDTH": 4,
        "LOW_BITS": 2,
        "BASE_WIDTH": 4,
        "SLOPE_WIDTH": 3,
        "LINE_FRAC": 3,
        "OUT_WIDTH": 4,
        "OUT_FRAC": 1,
        "INIT_FILE": '"table.mem"',
    },
)
PROOFS = (_prove({"TABLE": packed(LINES, 7)}, files={"table.mem": LINES}),)
FAULT = Edit("fixed_piecewise", "slope * along", "slope << along")
