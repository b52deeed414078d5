"""The op table: what MASE knows about each operator, one row each.

To add an op, add one row to the file of its family: its names in torch, its operands, what it
costs, how it computes on quantised operands, how it carries dimensions, what realises it in
hardware. From outside the package, `register_op(Op(...))` does the same. Torch targets are matched
by identity; an op that exists both as module and as function is one row. A name that torch, the
dimension rules or the types of the IR do not have is an error when the row is made. Nothing else
in the project may switch on an op's name: give the table a column instead.
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
