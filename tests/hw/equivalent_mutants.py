"""Faults of `mutation_engine` that change nothing a design can show, each with the reason.

The tests check that each of them is still tried, and that nothing notices it.
"""

EQUAL = "where both are equal either one is the same number"
ZERO = "at zero both branches give zero"
ROM = "constants come from ROMs, which are valid in every cycle but the first after a reset"
UNUSED = "nothing reads it: the component has no bias"

EQUIVALENT = {
    "fixed_norm:operator:83c1e195": f"{ROM}; the first element comes 19 cycles later",
    "fixed_norm:number:e2839ff5": "below 2**GUARD all elements are equal: c is 0, and 0 shifted",
    "fixed_softmax:condition:f0dc9082": "a row leaves its buffer without gaps; the first beat "
    "of the next row overwrites the sum",
    "gearbox:condition:36f98666": "without a beat only places beyond the count change",
    "fixed_shift_add:sign:f84c1e3f": "a node of an input is no wider than the input and its sign",
    "fixed_table_sum:number:b16ff3be": "a table of fewer bits is repeated for the addresses above",
    "fixed_matmul:number:351dff6d": UNUSED,
    "fixed_to_mxint:sign:eed35089": "SHIFTED has at most the bits of an element and its sign",
    "sliding_window:number:6a92f9e2": "windows that begin in row 0 begin STRIDE rows after "
    "the last ones that begin in padding: the sum is the same offset",
    "whole_window:dropped:826fc2a9": "the last window of an image is the last of its row, "
    "which has already put left_q there",
    "fixed_pool:number:7d8cb93d": ZERO,
    "fixed_pool:operator:b519f808": ZERO,
    "fixed_pool:number:8ba9f73d": ZERO,
    "fixed_pool:operator:c2d2f858": EQUAL,
    "fixed_divide:operator:e53822f6": "a reciprocal that is one too large errs by at most "
    "(d + 1) / 2**K, and a dividend is below 2**K / (d + 1)",
    "fixed_divide:sign:0fb1accd": "the bits above the element are shifted out",
    "fixed_divide:number:641b78f7": "without a choice of divisors nothing reads the table",
    "fixed_divide:number:72f65bd9": "no window has 0 pixels: entry 0 is not read",
    "fixed_hard_activation:number:7fb72bc8": ZERO,
    "fixed_hard_activation:operator:de078d53": ZERO,
    "fixed_cast:number:02af65c7": "0 rounds to 0, whatever less than a step is added",
    "fixed_cast:operator:56777b9f": "0 rounds to 0, whatever less than a step is added",
    "fixed_batch_norm:operator:a714f9e5": f"{ROM}: weight and bias become valid together",
    "fixed_dot_product:number:7a0ce6c4": "node 0 of the tree is no node: nothing reads it",
}
"""Reasons by the name of a fault."""
