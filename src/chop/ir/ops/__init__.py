"""Op table: one row per operator.

To add an op, add one row to the file of its family: its names in torch, its operands, cost,
computation on quantised operands, dimension rule and hardware. From outside the package, call
`register_op(Op(...))`. Torch targets are matched by identity; an op that is both a module and a
function is one row. A row with an unknown name of torch, of a dimension rule or of a MASE type
raises. Nothing else in the project may switch on an op's name: add a column to the table instead.
"""

from chop.ir.ops.compute import Compute, Operand, computes, parameter_role
from chop.ir.ops.row import (
    BUILTIN_FUNC,
    GET_ATTR,
    IMPLICIT_FUNC,
    MASE_TYPES,
    MODULE,
    MODULE_RELATED_FUNC,
    OUTPUT,
    PLACEHOLDER,
    UNKNOWN,
    Op,
    Shape,
    Shapes,
)
from chop.ir.ops.table import (
    FUNCTION_OPS,
    METHOD_OPS,
    OPS,
    find_op,
    node_module,
    op_of_function,
    op_of_method,
    op_of_module,
    register_op,
)

__all__ = [
    "BUILTIN_FUNC",
    "FUNCTION_OPS",
    "GET_ATTR",
    "IMPLICIT_FUNC",
    "MASE_TYPES",
    "METHOD_OPS",
    "MODULE",
    "MODULE_RELATED_FUNC",
    "OPS",
    "OUTPUT",
    "PLACEHOLDER",
    "UNKNOWN",
    "Compute",
    "Op",
    "Operand",
    "Shape",
    "Shapes",
    "computes",
    "find_op",
    "node_module",
    "op_of_function",
    "op_of_method",
    "op_of_module",
    "parameter_role",
    "register_op",
]
