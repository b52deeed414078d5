"""Proofs of `rom_source`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover, packed

_prove = Prover(__file__, {"WIDTH": 2, "INIT_FILE": '"table.mem"'})
PROOFS = (
    *(
        _prove({"DEPTH": len(words), "TABLE": packed(words, 2)}, files={"table.mem": words})
        for words in ((3, 1, 2), (3,))
    ),
)
FAULT = Edit("rom_source", "ADDRESS_WIDTH'(DEPTH - 1)", "ADDRESS_WIDTH'(DEPTH)")
