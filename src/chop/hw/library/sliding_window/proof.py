"""Proofs of `sliding_window`."""

from __future__ import annotations

from chop.hw.design.claims import Edit, Prover

_prove = Prover(
    __file__,
    {
        "WIDTH": 1,
        "COLUMNS": 2,
        "ROWS": 2,
        "KERNEL_COLUMNS": 2,
        "KERNEL_ROWS": 2,
        "STRIDE_COLUMNS": 1,
        "STRIDE_ROWS": 1,
        "PAD_COLUMNS": 0,
        "PAD_ROWS": 0,
        "PAD": "'1",
    },
)
PROOFS = (
    _prove({"ROWS": 1, "KERNEL_ROWS": 1, "PAD_COLUMNS": 1}, is_slow=True),
    _prove(is_slow=True),
)
FAULT = Edit("sliding_window", "read_pad_q ? PAD : read_q", "read_q")
