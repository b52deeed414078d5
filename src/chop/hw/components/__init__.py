"""The components of the library. Registration is this list of imports."""

from chop.hw.components.elementwise import (
    Add,
    BatchNorm,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Lut,
    Mul,
    Relu,
    Sub,
)
from chop.hw.components.linear import Linear
from chop.hw.components.plumbing import Cast, Fifo, Fork, Gearbox, Reorder, Skid
from chop.hw.components.spatial import AvgPool, Conv1d, Conv2d, MaxPool, SlidingWindow

__all__ = [
    "Add",
    "AvgPool",
    "BatchNorm",
    "Cast",
    "Conv1d",
    "Conv2d",
    "Fifo",
    "Fork",
    "Gearbox",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Linear",
    "Lut",
    "MaxPool",
    "Mul",
    "Relu",
    "Reorder",
    "Skid",
    "SlidingWindow",
    "Sub",
]
