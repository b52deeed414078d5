"""Proofs of `fixed_embedding`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover, packed

WORDS = (3, 1, 2, 0, 1, 2)
_prove = Prover(
    __file__, {"IN_WIDTH": 2, "OUT_WIDTH": 2, "OUT_LANES": 1, "INIT_FILE": '"table.mem"'}
)
PROOFS = (
    *(
        _prove(
            {"ROWS": rows, "OUT_SIZE": beats, "TABLE": packed(WORDS[: rows * beats], 2)},
            files={"table.mem": WORDS[: rows * beats]},
        )
        for rows, beats in ((3, 2), (4, 1))
    ),
)
FAULT = Edit("fixed_embedding", "WIDTH'(ROWS - 1)", "WIDTH'(0)")
