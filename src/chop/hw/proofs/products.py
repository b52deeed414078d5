"""Proofs of the products and of the leaky rectifier, to be moved into the folders of these.

Their harnesses are whole modules in `harness/`.
"""

from __future__ import annotations

from chop.hw.design.claims import Edit, Proof

ONE_BIT = {
    "IN": 2,
    "X_WIDTH": 1,
    "X_SIGNED": 0,
    "X_FRAC": 0,
    "W_WIDTH": 1,
    "W_SIGNED": 0,
    "W_FRAC": 0,
    "HAS_BIAS": 0,
    "B_FRAC": 0,
    "OUT": 1,
    "OUT_WIDTH": 2,
    "OUT_FRAC": 0,
    "BOUND": 8,
}
"""A linear layer of two inputs and one output, each of one bit."""
PROOFS = (
    Proof("fixed_leaky_relu"),
    Proof("fixed_leaky_relu", {"ROUNDING": 1, "SLOPE": 5, "IN_SIGNED": 1}),
    Proof("fixed_leaky_relu", {"HAS_WEIGHT": 1, "IN_WIDTH": 3, "IN_FRAC": 1}),
    Proof("fixed_dot_product", {"OUTPUTS": 1}),
    Proof("fixed_dot_product", {"OUTPUTS": 1, "LANES": 1, "X_SIGNED": 0}),
    Proof("fixed_dot_product", {"LANES": 1, "IS_PACKED": 1}, is_slow=True),
    Proof("fixed_linear", ONE_BIT, is_slow=True),
    Proof("fixed_linear", {**ONE_BIT, "IN_LANES": 2, "SLOTS": 12}, is_slow=True),
    Proof("fixed_linear", {**ONE_BIT, "X_EXPONENT": 1, "W_EXPONENT": 1}, is_slow=True),
    Proof("fixed_matmul", is_slow=True),
)
FAULTS = (
    Edit("fixed_leaky_relu", "x <<< NEGATIVE_SLOPE_FRAC", "x <<< (NEGATIVE_SLOPE_FRAC - 1)"),
    Edit("fixed_dot_product", "product_q <= x * w;", "product_q <= x * $unsigned(w);"),
    Edit("fixed_linear", "if (free && !load)", "if (free)"),
    Edit("fixed_matmul", "(DATA_IN_1_IS_SIGNED)", "(!DATA_IN_1_IS_SIGNED)"),
)
