"""What is proved. To add a module: `harness/prove_<module>.sv` and its rows here.

A harness has the module's free inputs as ports and gives `broken`, one bit for each law. Sizes are
small; the laws hold for every input, in every cycle, whatever the other side of each stream does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import Reorder, ShiftAdd, TableSum, Weights
from chop.hw.library.constant_product import ConstantProduct
from chop.hw.proofs.engine import Edit, Proof

VALUE = ("order",)
"""Of what is no stream: the value alone."""
TABLE = (3, 1, 5, 7, 2, 0, 4, 6)
TABLE_ROWS = (3, 1, 2, 0, 1, 2)
_DATA = {"IN": 2, "X_WIDTH": 1, "X_SIGNED": 0, "X_FRAC": 0}
_WEIGHT = {"W_WIDTH": 1, "W_SIGNED": 0, "W_FRAC": 0, "HAS_BIAS": 0, "B_FRAC": 0}
ONE_BIT = {**_DATA, **_WEIGHT, "OUT": 1, "OUT_WIDTH": 2, "OUT_FRAC": 0, "BOUND": 8}
"""A linear layer of two inputs and one output, each of one bit."""
BIT = {"WIDTH": 1, "OUT_WIDTH": 1, "IS_SIGNED": 0}


def packed(words: tuple[int, ...], width: int) -> str:
    """A table as a constant of SystemVerilog, the first word in the low bits."""
    value = sum(word << k * width for k, word in enumerate(words))
    return f"{width * len(words)}'d{value}"


STREAMS = (
    Proof("skid_buffer"),
    *(Proof("fifo", {"DEPTH": depth}) for depth in (1, 2, 3, 4)),
    Proof(
        "fifo",
        {"DEPTH": 3},
        edits=(Edit("fifo", "DEPTH > 32 && DEPTH * DATA_WIDTH >= 1024", "1'b1"),),  # block RAM
    ),
    *(Proof("fifo", {"DEPTH": depth, "HAS_HEAD": 1}) for depth in (2, 3)),
    Proof("stream_fork"),
    Proof("stream_fork", {"BRANCHES": 3, "WIDTH": 1}),
    Proof("stream_join"),
    *(
        Proof("gearbox", {"IN_LANES": a, "OUT_LANES": b, "UNIT": unit, "WIDTH": 1})
        for a, b, unit in ((2, 3, 1), (1, 3, 1), (3, 1, 1), (4, 2, 2), (3, 2, 1))
    ),
    Proof("stream_slice"),
    Proof("stream_slice", {"BEATS": 3, "FIRST": 0, "KEPT": 3}),
    *(Proof("stream_concat", {"IS_SWAPPED": swapped}) for swapped in (0, 1)),
    Proof("stream_concat", {"BEATS_0": 1, "BEATS_1": 3, "WIDTH": 2}, is_slow=True),
    Proof("stream_route"),
    *(
        Proof(
            "rom_source",
            {"DEPTH": depth, "TABLE": packed(TABLE_ROWS[:depth], 2)},
            files={"table.mem": TABLE_ROWS[:depth]},
        )
        for depth in (3, 1)
    ),
)


def _reorder(order: tuple[int, ...], size: int, lanes: int, *, is_slow: bool = False) -> Proof:
    """Elements in another order, against that order."""
    moved = Reorder(Stream((size,), lanes, Fixed(1, 0)), order, (len(order),))
    given: dict[str, int | str] = {
        "LANES": lanes,
        "IN": size,
        "OUT": len(order),
        "MOVES_BEATS": int(moved.moves_beats),
        "ORDER": packed(order, 4),
    }
    files = {f"{memory.name}.mem": memory.words for memory in moved.memories()}
    return Proof("stream_reorder", given, files=files, is_slow=is_slow)


BUFFERS = (
    _reorder((2, 0, 1, 3), 4, 2),
    _reorder((2, 3, 0, 1), 4, 2, is_slow=True),
    _reorder((2, 1, 0), 3, 1, is_slow=True),
    Proof("row_buffer"),
    Proof("row_buffer", {"BEATS": 1}, is_slow=True),
    Proof("tile_buffer", {"GROUP": 2}),
    Proof("tile_buffer", is_slow=True),
    Proof("tile_buffer", {"GROUPS_FIRST": 1}, is_slow=True),
    Proof("sliding_window", {"ROWS": 1, "KERNEL_ROWS": 1, "PAD_COLUMNS": 1}, is_slow=True),
    Proof("sliding_window", is_slow=True),
)

CASTS = (
    Proof("fixed_cast", {}, VALUE),
    Proof("stream_cast"),
    Proof("stream_cast", {"IN_SIGNED": 0, "OUT_SIGNED": 0, "ROUNDING": 1, "OVERFLOW": 2}),
)

ARITHMETIC = (
    Proof("fixed_relu"),
    Proof("fixed_relu", {"IN_SIGNED": 0}),
    *(Proof("fixed_arithmetic", {"OPERATION": k}) for k in range(3)),
    Proof(
        "fixed_arithmetic",
        {"OPERATION": 2, "A_SIGNED": 0, "B_WIDTH": 4, "ROUNDING": 3},
        is_slow=True,
    ),
    Proof(
        "fixed_arithmetic",
        {"OPERATION": 2, "HAS_OPERAND_REGISTER": 1, "B_WIDTH": 2},
        is_slow=True,
    ),
    Proof("fixed_arithmetic", {"ALPHA": 3, "ALPHA_FRAC": 1, "B_SIGNED": 0}),
    Proof("fixed_leaky_relu"),
    Proof("fixed_leaky_relu", {"ROUNDING": 1, "SLOPE": 5, "IN_SIGNED": 1}),
    Proof("fixed_leaky_relu", {"HAS_WEIGHT": 1, "IN_WIDTH": 3, "IN_FRAC": 1}),
    Proof("fixed_hard_activation", {"IN_FRAC": 1}),
    Proof("fixed_hard_activation", {"IN_FRAC": 1, "IS_SWISH": 1}, is_slow=True),
    *(Proof("fixed_divide", {"DIVISOR": d, "ROUNDING": r}, VALUE) for d, r in ((3, 0), (6, 3))),
    Proof("fixed_divide", {"DIVISOR": 4, "IS_CHOSEN": 1}, VALUE),
    Proof("fixed_divide", {"HAS_PARTS": 1, "PART": 5}, VALUE),
    Proof("fixed_divide", {"HAS_PARTS": 1, "PART": 5, "IS_CHOSEN": 1}, VALUE, is_slow=True),
    Proof("fixed_lut", {"TABLE": packed(TABLE, 3)}, files={"table.mem": TABLE}),
    *(
        Proof(
            "fixed_embedding",
            {"ROWS": rows, "BEATS": beats, "TABLE": packed(TABLE_ROWS[: rows * beats], 2)},
            files={"table.mem": TABLE_ROWS[: rows * beats]},
        )
        for rows, beats in ((3, 2), (4, 1))
    ),
    Proof(
        "fixed_piecewise",
        {"TABLE": packed((105, 18, 77, 3), 7)},
        files={"table.mem": (105, 18, 77, 3)},
    ),
    Proof("fixed_dot_product", {"OUTPUTS": 1}),
    Proof("fixed_dot_product", {"OUTPUTS": 1, "LANES": 1, "X_SIGNED": 0}),
    Proof("fixed_dot_product", {"LANES": 1, "IS_PACKED": 1}, is_slow=True),
    Proof("fixed_linear", ONE_BIT, is_slow=True),
    Proof("fixed_linear", {**ONE_BIT, "IN_LANES": 2, "SLOTS": 12}, is_slow=True),
    Proof("fixed_linear", {**ONE_BIT, "X_EXPONENT": 1, "W_EXPONENT": 1}, is_slow=True),
    Proof("fixed_matmul", is_slow=True),
    Proof("fixed_batch_norm"),
    Proof("fixed_pool", BIT, is_slow=True),
    Proof("fixed_pool", {**BIT, "IS_MAXIMUM": 0}, is_slow=True),
    Proof("mxint_to_fixed"),
    Proof("fixed_to_mxint", is_slow=True),
)


def _constants(
    kind: type[ConstantProduct],
    weight: list[list[int]],
    bias: list[int],
    step: int,
    number: Fixed,
) -> Proof:
    """A network of additions or tables, against the weights it was made from."""
    out, codes, bits = Fixed(4, 1), Fixed(4, 1), 4
    weights = Weights(np.array(weight), codes, np.array(bias), Fixed(4, 2))
    layer = kind(Stream((len(weight[0]),), len(weight[0]), number), weights, out, step)
    told = layer.parameters()
    given: dict[str, int | str] = {
        "IN": len(weight[0]),
        "OUT": len(weight),
        "X_SIGNED": int(number.is_signed),
        "X_WIDTH": number.width,
    }
    for name in TOLD:
        if name not in told:
            continue
        value = told[name]
        given[name] = packed(value, 64) if isinstance(value, tuple) else int(value)
    given["WEIGHT"] = packed(tuple(w % 16 for row in weight for w in row), bits)
    given["BIAS"] = packed(tuple(b % 16 for b in bias), bits)
    return Proof(kind.module, given)


TOLD = (
    *("ACC_WIDTH", "ACC_FRAC", "IS_HALF_ADDED", "STAGES", "NODES", "TABLES", "COLUMNS"),
    *("NETWORK", "SUMS", "STARTS", "CONTENTS"),
)
"""What the harnesses are told of the network, each what it takes."""
ADDITIONS = (
    _constants(ShiftAdd, [[-6, 4]], [3], 1, Fixed(2, 1)),
    _constants(ShiftAdd, [[-6, 4], [-2, 0]], [3, 2], 1, Fixed(1, 1)),
    _constants(ShiftAdd, [[5, 2], [0, 0]], [-1, 2], 2, Fixed(1, 1, is_signed=False)),
    replace(_constants(TableSum, [[-6, 4, 1, 7]], [3], 2, Fixed(2, 1)), is_slow=True),
    _constants(TableSum, [[5, 2], [0, 0]], [-1, 2], 2, Fixed(1, 1, is_signed=False)),
)

PROOFS: tuple[Proof, ...] = (*STREAMS, *BUFFERS, *CASTS, *ARITHMETIC, *ADDITIONS)
