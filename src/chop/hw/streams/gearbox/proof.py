"""Proofs of `gearbox`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(__file__, {"IN_WIDTH": 1})
PROOFS = (
    *(
        _prove({"IN_LANES": a, "OUT_LANES": b, "UNIT": unit})
        for a, b, unit in ((2, 3, 1), (1, 3, 1), (3, 1, 1), (4, 2, 2), (3, 2, 1))
    ),
)
FAULT = Edit("gearbox", "CAPACITY - IN_UNITS);", "CAPACITY - IN_UNITS + 1);")
