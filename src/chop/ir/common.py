"""Names of the ops of each of the seven MASE types, from the op table."""

from __future__ import annotations

from chop.ir.ops import (
    BUILTIN_FUNC,
    IMPLICIT_FUNC,
    MASE_TYPES,
    MODULE,
    MODULE_RELATED_FUNC,
    OPS,
)

__all__ = [
    "MASE_BUILTIN_FUNCTIONS",
    "MASE_IMPLICIT_FUNCTIONS",
    "MASE_MODULES",
    "MASE_MODULE_RELATED_FUNCTIONS",
    "MASE_TYPES",
    "OPS_BY_TYPE",
]

OPS_BY_TYPE: dict[str, list[str]] = {
    kind: [op.name for op in OPS.values() if op.type == kind] for kind in MASE_TYPES
}
MASE_MODULES = OPS_BY_TYPE[MODULE]
MASE_MODULE_RELATED_FUNCTIONS = OPS_BY_TYPE[MODULE_RELATED_FUNC]
MASE_BUILTIN_FUNCTIONS = OPS_BY_TYPE[BUILTIN_FUNC]
MASE_IMPLICIT_FUNCTIONS = OPS_BY_TYPE[IMPLICIT_FUNC]
