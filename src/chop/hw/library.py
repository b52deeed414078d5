"""The components of the library. Registration is this list of imports."""

from chop.hw import averages, picking, wiring
from chop.hw.lower.registry import check_op_table
from chop.hw.rtl import (
    fifo,
    fixed_arithmetic,
    fixed_batch_norm,
    fixed_conv,
    fixed_hard_activation,
    fixed_leaky_relu,
    fixed_linear,
    fixed_lut,
    fixed_matmul,
    fixed_norm,
    fixed_piecewise,
    fixed_pool,
    fixed_relu,
    fixed_softmax,
    gearbox,
    skid_buffer,
    sliding_window,
    stream_cast,
    stream_concat,
    stream_fork,
    stream_reorder,
    stream_slice,
)

__all__ = [
    "averages",
    "fifo",
    "fixed_arithmetic",
    "fixed_batch_norm",
    "fixed_conv",
    "fixed_hard_activation",
    "fixed_leaky_relu",
    "fixed_linear",
    "fixed_lut",
    "fixed_matmul",
    "fixed_norm",
    "fixed_piecewise",
    "fixed_pool",
    "fixed_relu",
    "fixed_softmax",
    "gearbox",
    "picking",
    "skid_buffer",
    "sliding_window",
    "stream_cast",
    "stream_concat",
    "stream_fork",
    "stream_reorder",
    "stream_slice",
    "wiring",
]

check_op_table()
