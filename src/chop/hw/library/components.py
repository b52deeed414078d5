"""The classes of the components, under one name; each is defined in its folder."""

from typing import TYPE_CHECKING

from chop.compat.old_names import lazy_names
from chop.hw.design.component import Mover, Unary
from chop.hw.library.fixed_argmax import ArgMax
from chop.hw.library.fixed_arithmetic import Add, ElementwiseBinary, Mul, Sub, WithConstant
from chop.hw.library.fixed_batch_norm import BatchNorm
from chop.hw.library.fixed_clamp import Clamp
from chop.hw.library.fixed_conv import Conv, Conv1d, Conv2d, ExternalConv1d, ExternalConv2d
from chop.hw.library.fixed_embedding import Embedding
from chop.hw.library.fixed_hard_activation import HardSigmoid, HardSwish
from chop.hw.library.fixed_leaky_relu import LeakyRelu, PRelu
from chop.hw.library.fixed_linear import (
    BlockLinear,
    BlockWeights,
    ExternalLinear,
    ExternalWeights,
    Linear,
    Weights,
)
from chop.hw.library.fixed_lut import Lut
from chop.hw.library.fixed_matmul import BlockMatmul, Matmul
from chop.hw.library.fixed_norm import LayerNorm, Norm, RmsNorm
from chop.hw.library.fixed_piecewise import Piecewise
from chop.hw.library.fixed_pool import AvgPool, MaxPool, Pool
from chop.hw.library.fixed_relu import Relu
from chop.hw.library.fixed_shift_add import ShiftAdd
from chop.hw.library.fixed_softmax import Softmax
from chop.hw.library.fixed_table_sum import TableSum
from chop.hw.library.sliding_window import SlidingWindow
from chop.hw.library.stream_concat import Concat
from chop.hw.library.whole_window import WholeWindow
from chop.hw.streams.fifo import Fifo
from chop.hw.streams.fixed_to_mxint import ToMxint
from chop.hw.streams.gearbox import Gearbox
from chop.hw.streams.mxint_to_fixed import FromMxint
from chop.hw.streams.skid_buffer import Skid
from chop.hw.streams.stream_cast import Cast
from chop.hw.streams.stream_fork import Fork
from chop.hw.streams.stream_reorder import Reorder
from chop.hw.streams.stream_slice import Slice

__all__ = [
    "Add",
    "ArgMax",
    "AvgPool",
    "BatchNorm",
    "BlockLinear",
    "BlockMatmul",
    "BlockWeights",
    "Cast",
    "Clamp",
    "Concat",
    "Conv",
    "Conv1d",
    "Conv2d",
    "ElementwiseBinary",
    "Embedding",
    "ExternalConv1d",
    "ExternalConv2d",
    "ExternalLinear",
    "ExternalWeights",
    "Fifo",
    "Fork",
    "FromMxint",
    "Gearbox",
    "HardSigmoid",
    "HardSwish",
    "LayerNorm",
    "LeakyRelu",
    "Linear",
    "Lut",
    "Matmul",
    "MaxPool",
    "Mover",
    "Mul",
    "Norm",
    "PRelu",
    "Piecewise",
    "Pool",
    "Relu",
    "Reorder",
    "RmsNorm",
    "ShiftAdd",
    "Skid",
    "Slice",
    "SlidingWindow",
    "Softmax",
    "Sub",
    "TableSum",
    "ToMxint",
    "Unary",
    "Weights",
    "WholeWindow",
    "WithConstant",
]

if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__ = lazy_names(__name__)
