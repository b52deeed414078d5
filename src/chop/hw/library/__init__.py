"""The components of the library. Registration is this list of imports."""

from chop.hw.library import (averages, packed, picking, wiring)
from chop.hw.lower.registry import check_op_table
from chop.hw.streams import (fifo, fixed_to_mxint, gearbox, mxint_to_fixed, skid_buffer, stream_cast, stream_fork, stream_reorder, stream_route, stream_slice)
from chop.hw.library import (fixed_arithmetic, fixed_batch_norm, fixed_conv, fixed_embedding, fixed_hard_activation, fixed_leaky_relu, fixed_linear, fixed_lut, fixed_matmul, fixed_norm, fixed_piecewise, fixed_pool, fixed_prelu, fixed_relu, fixed_shift_add, fixed_softmax, fixed_table_sum, mxint_linear, mxint_matmul, sliding_window, stream_concat, whole_window)

__all__ = [
    "averages",
    "fifo",
    "fixed_arithmetic",
    "fixed_batch_norm",
    "fixed_conv",
    "fixed_embedding",
    "fixed_hard_activation",
    "fixed_leaky_relu",
    "fixed_linear",
    "fixed_lut",
    "fixed_matmul",
    "fixed_norm",
    "fixed_piecewise",
    "fixed_pool",
    "fixed_prelu",
    "fixed_relu",
    "fixed_shift_add",
    "fixed_softmax",
    "fixed_table_sum",
    "fixed_to_mxint",
    "gearbox",
    "mxint_linear",
    "mxint_matmul",
    "mxint_to_fixed",
    "packed",
    "picking",
    "skid_buffer",
    "sliding_window",
    "stream_cast",
    "stream_concat",
    "stream_fork",
    "stream_reorder",
    "stream_route",
    "stream_slice",
    "whole_window",
    "wiring",
]

check_op_table()
