"""From a quantised MaseGraph to a hardware design, node by node.

The column `rtl` of the op table says how an op is realised; `LOWERINGS` has an entry for each of
its values, which the folder of the component makes. What is computed is what PyTorch computes: a
value that the model does not quantise travels exactly, and whoever reads it brings it to the format
that it applies. Where that is the same, the cast is moved to the producer (`formats.py`). The order
in which the elements of a tensor are streamed is free: images go channel by channel within a pixel,
and a flattened image stays so, because the weights behind it are permuted instead.
"""

from chop.hw.lower.engine import (
    Lowered,
    Lowerer,
    Parallelism,
    Value,
    lower,
    unary,
)
from chop.hw.lower.registry import LOWERINGS, Lowering, lowers
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
