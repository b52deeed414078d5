"""Where element-wise components were; they are in `chop.hw.components`."""

from chop.hw.components import (
    Add,
    BatchNorm,
    Binary,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Lut,
    Mul,
    Relu,
    Sub,
    Unary,
)

__all__ = [
    "Add",
    "BatchNorm",
    "Binary",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Lut",
    "Mul",
    "Relu",
    "Sub",
    "Unary",
]
