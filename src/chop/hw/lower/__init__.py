"""Lowering of a quantised MaseGraph to a hardware design, node by node.

The column `rtl` of the op table names the realisation of an op; `LOWERINGS` has an entry for each
of its values, made in the folder of the component. The design computes what PyTorch computes: a
value that the model does not quantise stays exact, and each reader applies its format. If all
readers apply the same format, the cast moves to the producer (`formats.py`). The elements of a
tensor may be streamed in any order: images go channel by channel within a pixel, and a flattened
image stays so, because the weights behind it are permuted instead.
"""

from chop.hw.lower.engine import (
    Lowered,
    Lowerer,
    Parallelism,
    Value,
    lower,
    unary,
)
from chop.hw.lower.lowerings import LOWERINGS, Lowering, lowers
from chop.hw.lower.supported import check_supported, supported_ops
from chop.ir.design_spec import DesignSpec

__all__ = [
    "LOWERINGS",
    "DesignSpec",
    "Lowered",
    "Lowerer",
    "Lowering",
    "Parallelism",
    "Value",
    "check_supported",
    "lower",
    "lowers",
    "supported_ops",
    "unary",
]
