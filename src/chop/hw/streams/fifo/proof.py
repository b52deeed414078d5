"""Proofs of `fifo`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

BLOCK_RAM = Edit("fifo", "DEPTH > 32 && DEPTH * DATA_WIDTH >= 1024", "1'b1")
"""The variant that only deep FIFOs have."""
_prove = Prover(__file__, {"WIDTH": 2, "DEPTH": 3})
PROOFS = (
    *(_prove({"DEPTH": depth}) for depth in (1, 2, 3, 4)),
    _prove({"DEPTH": 3}, edits=(BLOCK_RAM,)),
    *(_prove({"DEPTH": depth, "HAS_HEAD": 1}) for depth in (2, 3)),
)
FAULT = Edit("fifo", "= count_q != COUNT_WIDTH'(DEPTH)", "= 1'b1")
