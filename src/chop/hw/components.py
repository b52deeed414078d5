"""The classes of the components, under one name; each is defined in its folder of `chop.hw.rtl`."""

from chop.hw.component import Mover, Unary
from chop.hw.rtl.fifo import Fifo
from chop.hw.rtl.fixed_arithmetic import Add, Binary, Mul, Sub, WithConstant
from chop.hw.rtl.fixed_batch_norm import BatchNorm
from chop.hw.rtl.fixed_conv import Conv, Conv1d, Conv2d, ExternalConv1d, ExternalConv2d
from chop.hw.rtl.fixed_embedding import Embedding
from chop.hw.rtl.fixed_hard_activation import HardSigmoid, HardSwish
from chop.hw.rtl.fixed_leaky_relu import LeakyRelu
from chop.hw.rtl.fixed_linear import ExternalLinear, ExternalWeights, Linear, Weights
from chop.hw.rtl.fixed_lut import Lut
from chop.hw.rtl.fixed_matmul import Matmul
from chop.hw.rtl.fixed_norm import LayerNorm, Norm, RmsNorm
from chop.hw.rtl.fixed_piecewise import Piecewise
from chop.hw.rtl.fixed_pool import AvgPool, MaxPool, Pool
from chop.hw.rtl.fixed_prelu import PRelu
from chop.hw.rtl.fixed_relu import Relu
from chop.hw.rtl.fixed_shift_add import ShiftAdd
from chop.hw.rtl.fixed_softmax import Softmax
from chop.hw.rtl.fixed_table_sum import TableSum
from chop.hw.rtl.fixed_to_mxint import ToMxint
from chop.hw.rtl.gearbox import Gearbox
from chop.hw.rtl.mxint_linear import BlockLinear, BlockWeights
from chop.hw.rtl.mxint_matmul import BlockMatmul
from chop.hw.rtl.mxint_to_fixed import FromMxint
from chop.hw.rtl.skid_buffer import Skid
from chop.hw.rtl.sliding_window import SlidingWindow
from chop.hw.rtl.stream_cast import Cast
from chop.hw.rtl.stream_concat import Concat
from chop.hw.rtl.stream_fork import Fork
from chop.hw.rtl.stream_reorder import Reorder
from chop.hw.rtl.stream_slice import Slice
from chop.hw.rtl.whole_window import WholeWindow

__all__ = [
    "Add",
    "AvgPool",
    "BatchNorm",
    "Binary",
    "BlockLinear",
    "BlockMatmul",
    "BlockWeights",
    "Cast",
    "Concat",
    "Conv",
    "Conv1d",
    "Conv2d",
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
