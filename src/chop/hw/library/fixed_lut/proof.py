"""Proofs of `fixed_lut`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover, packed

WORDS = (3, 1, 5, 7, 2, 0, 4, 6)
_prove = Prover(__file__, {"IN_WIDTH": 3, "OUT_WIDTH": 3, "INIT_FILE": '"table.mem"'})
PROOFS = (_prove({"TABLE": packed(WORDS, 3)}, files={"table.mem": WORDS}),)
FAULT = Edit("fixed_lut", "read_valid_q <= data_in_0_valid;", "read_valid_q <= 1'b1;")
