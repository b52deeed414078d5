"""Operations, and the rules for the shape and dtype of their results.

The table `OPS` has the number of inputs, the attributes and the result of each operation. The rules
run when a node is added, so every graph is consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from graph.errors import DtypeError, ShapeError, UnknownOpError, suggest

Shape = tuple[int, ...]
DTYPES = ("float32", "float64", "int32", "int64")


class Op(Enum):
    """Operations of the IR.

    To add one: a member here and rows in `OPS`, `evaluator.KERNELS` and `backward.RULES`. The tests
    check that no table lacks it.
    """

    INPUT = "input"
    CONST = "const"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    NEG = "neg"
    POW = "pow"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    RELU = "relu"
    STEP = "step"  # 1 where x > 0, else 0: the derivative of relu
    EQUAL = "equal"  # 1 where a == b, else 0: selects the largest for max
    MATMUL = "matmul"
    TRANSPOSE = "transpose"
    RESHAPE = "reshape"
    BROADCAST = "broadcast"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
    CROSS_ENTROPY = "cross_entropy"
    ONE_HOT = "one_hot"
    CAST = "cast"
    FUSED = "fused"  # several elementwise operations, by passes.fuse_elementwise


class Operand(Protocol):
    """Properties of an input that the rules read; `ir.Node` is one."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...


def find_op(op: Op | str) -> Op:
    """Return the member of `Op` with a name."""
    if isinstance(op, Op):
        return op
    try:
        return Op(op)
    except ValueError:
        names = [member.value for member in Op]
        raise UnknownOpError(f"unknown op '{op}'. {suggest(op, names)}") from None


def find_dtype(where: str, dtype: Any) -> np.dtype[Any]:
    """Return the numpy dtype, which must be one of `DTYPES`."""
    result = np.dtype(dtype)
    if result.name not in DTYPES:
        raise DtypeError(f"{where}: dtype must be one of {', '.join(DTYPES)}, got {result.name}.")
    return result


class Step(NamedTuple):
    """One operation inside a FUSED node: operand i is input i, or step i - len(inputs)."""

    op: Op
    operands: tuple[int, ...]


Inferred = tuple[Shape, np.dtype[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """An operation before it becomes a node: the argument of the rules of `OPS`."""

    op: Op
    name: str
    inputs: Sequence[Operand]
    attributes: Mapping[str, Any]

    def infer(self) -> Inferred:
        """Return shape, dtype and attributes with defaults, axes counted from zero."""
        spec = OPS.get(self.op)
        if spec is None:
            raise UnknownOpError(
                f"{self.where}: add_op makes operations only; use add_{self.op.value}."
            )
        if len(self.inputs) != spec.arity and spec.arity:
            text = f"takes {spec.arity} input{'s' * (spec.arity > 1)}, got {len(self.inputs)}."
            raise ShapeError(f"{self.where}: {text}")
        for key in self.attributes:
            if key not in spec.defaults:
                text = f"{self.where}: unknown attribute '{key}'."
                raise UnknownOpError(f"{text} {suggest(key, spec.defaults)}")
        if spec.needs_float:
            self.require_float()
        return spec.infer(self, {**spec.defaults, **self.attributes})

    @property
    def where(self) -> str:
        """Name of this node in messages."""
        return f"node '{self.name}' ({self.op.value})"

    @property
    def shapes(self) -> str:
        """Shapes of the inputs in messages."""
        return " and ".join(f"{node.shape} of '{node.name}'" for node in self.inputs)

    def require_float(self) -> None:
        """Raise if an input is an integer."""
        for node in self.inputs:
            if node.dtype.kind != "f":
                text = f"needs a floating dtype, got {node.dtype} of '{node.name}'; add a cast."
                raise DtypeError(f"{self.where}: {text}")

    def one_dtype(self) -> np.dtype[Any]:
        """Return the common dtype of the inputs; conversions are explicit in this IR."""
        first = self.inputs[0]
        for node in self.inputs[1:]:
            if node.dtype != first.dtype:
                text = f"dtypes {first.dtype} of '{first.name}' and {node.dtype} of '{node.name}'"
                raise DtypeError(f"{self.where}: {text} differ; add a cast.")
        return first.dtype

    def broadcast_shape(self, *shapes: Shape) -> Shape:
        """Return the shape that `shapes` broadcast to, by numpy's rule."""
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            text = f"shapes {self.shapes} do not broadcast together."
            raise ShapeError(f"{self.where}: {text}") from None

    def axes(self, axis: Any) -> tuple[int, ...]:
        """Return `axis` (None for all, a number, or several) as sorted numbers from zero."""
        rank = self.inputs[0].ndim
        axes = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
        for one in axes:
            if not -rank <= one < rank:
                text = f"axis {one} is out of range for the shape {self.inputs[0].shape}"
                raise ShapeError(f"{self.where}: {text} of '{self.inputs[0].name}'.")
        return tuple(sorted({one % rank for one in axes}))


def _elementwise(call: Call, settled: dict[str, Any]) -> Inferred:
    shapes = [node.shape for node in call.inputs]
    is_same = shapes.count(shapes[0]) == len(shapes)
    return shapes[0] if is_same else call.broadcast_shape(*shapes), call.one_dtype(), settled


def _matmul(call: Call, settled: dict[str, Any]) -> Inferred:
    a, b = (node.shape for node in call.inputs)
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(
            f"{call.where}: needs two matrices (or stacks of them), got {call.shapes}."
        )
    if a[-1] != b[-2]:
        text = f"inner sizes {a[-1]} and {b[-2]} differ in the shapes {call.shapes}."
        raise ShapeError(f"{call.where}: {text}")
    return (*call.broadcast_shape(a[:-2], b[:-2]), a[-2], b[-1]), call.one_dtype(), settled


def _transpose(call: Call, settled: dict[str, Any]) -> Inferred:
    (x,) = call.inputs
    axes = settled["axes"]
    axes = tuple(reversed(range(x.ndim))) if axes is None else tuple(axes)
    if sorted(a % max(1, x.ndim) for a in axes) != list(range(x.ndim)):
        text = f"axes {axes} are no permutation of the {x.ndim} axes of {call.shapes}."
        raise ShapeError(f"{call.where}: {text}")
    axes = tuple(a % x.ndim for a in axes)
    return tuple(x.shape[a] for a in axes), x.dtype, {"axes": axes}


def _reshape(call: Call, settled: dict[str, Any]) -> Inferred:
    (x,) = call.inputs
    target = tuple(settled["shape"] or ())
    fixed = prod(size for size in target if size != -1)
    shape = tuple(x.size // max(1, fixed) if size == -1 else size for size in target)
    if prod(shape) != x.size or target.count(-1) > 1 or any(size < 1 for size in shape):
        raise ShapeError(f"{call.where}: shape {call.shapes} cannot be reshaped to {target}.")
    return shape, x.dtype, {"shape": shape}


def _broadcast(call: Call, settled: dict[str, Any]) -> Inferred:
    (x,) = call.inputs
    shape = tuple(settled["shape"] or ())
    try:
        fits = np.broadcast_shapes(x.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{call.where}: shape {call.shapes} cannot be broadcast to {shape}.")
    return shape, x.dtype, {"shape": shape}


def _reduce(call: Call, settled: dict[str, Any]) -> Inferred:
    (x,) = call.inputs
    axis, keepdims = call.axes(settled["axis"]), bool(settled["keepdims"])
    sizes = [1 if i in axis else n for i, n in enumerate(x.shape) if keepdims or i not in axis]
    return tuple(sizes), x.dtype, {"axis": axis} | ({"keepdims": True} if keepdims else {})


def _along_axis(call: Call, settled: dict[str, Any]) -> Inferred:
    (x,) = call.inputs
    axes = call.axes(settled["axis"])
    if len(axes) != 1:
        raise ShapeError(f"{call.where}: needs one axis, got {axes} for {call.shapes}.")
    return x.shape, x.dtype, {"axis": axes[0]}


def _cross_entropy(call: Call, settled: dict[str, Any]) -> Inferred:
    logits, target = call.inputs
    if logits.shape != target.shape or not logits.shape:
        text = f"needs logits and class probabilities of one shape, got {call.shapes};"
        raise ShapeError(f"{call.where}: {text} turn class numbers into rows with one_hot.")
    return (), call.one_dtype(), settled


def _one_hot(call: Call, settled: dict[str, Any]) -> Inferred:
    (labels,) = call.inputs
    classes, dtype = settled["classes"], find_dtype(call.where, settled["dtype"])
    if labels.dtype.kind != "i":
        text = f"needs an integer dtype, got {labels.dtype} of '{labels.name}'."
        raise DtypeError(f"{call.where}: {text}")
    if classes < 1:
        raise ShapeError(f"{call.where}: classes must be at least 1, got {classes}.")
    return (*labels.shape, classes), dtype, {"classes": classes, "dtype": dtype.name}


def _cast(call: Call, settled: dict[str, Any]) -> Inferred:
    dtype = find_dtype(call.where, settled["dtype"])
    return call.inputs[0].shape, dtype, {"dtype": dtype.name}


class OpSpec(NamedTuple):
    """Properties of an operation."""

    arity: int  # number of inputs, 0 for any
    infer: Callable[[Call, dict[str, Any]], Inferred]
    defaults: Mapping[str, Any] = {}  # attributes
    is_elementwise: bool = False
    needs_float: bool = False


_FLOAT = OpSpec(1, _elementwise, is_elementwise=True, needs_float=True)
_ONE = OpSpec(1, _elementwise, is_elementwise=True)
_TWO = OpSpec(2, _elementwise, is_elementwise=True)
_REDUCTION = {"axis": None, "keepdims": False}

OPS: Mapping[Op, OpSpec] = {
    Op.ADD: _TWO,
    Op.SUB: _TWO,
    Op.MUL: _TWO,
    Op.DIV: _TWO._replace(needs_float=True),
    Op.NEG: _ONE,
    Op.POW: _TWO._replace(needs_float=True),
    Op.EXP: _FLOAT,
    Op.LOG: _FLOAT,
    Op.SQRT: _FLOAT,
    Op.TANH: _FLOAT,
    Op.SIGMOID: _FLOAT,
    Op.RELU: _ONE,
    Op.STEP: _ONE,
    Op.EQUAL: _TWO,
    Op.MATMUL: OpSpec(2, _matmul),
    Op.TRANSPOSE: OpSpec(1, _transpose, {"axes": None}),
    Op.RESHAPE: OpSpec(1, _reshape, {"shape": None}),
    Op.BROADCAST: OpSpec(1, _broadcast, {"shape": None}),
    Op.SUM: OpSpec(1, _reduce, _REDUCTION),
    Op.MEAN: OpSpec(1, _reduce, _REDUCTION, needs_float=True),
    Op.MAX: OpSpec(1, _reduce, _REDUCTION),
    Op.SOFTMAX: OpSpec(1, _along_axis, {"axis": -1}, needs_float=True),
    Op.LOG_SOFTMAX: OpSpec(1, _along_axis, {"axis": -1}, needs_float=True),
    Op.CROSS_ENTROPY: OpSpec(2, _cross_entropy, needs_float=True),
    Op.ONE_HOT: OpSpec(1, _one_hot, {"classes": 0, "dtype": "float64"}),
    Op.CAST: OpSpec(1, _cast, {"dtype": "float64"}),
    Op.FUSED: OpSpec(0, _elementwise, {"steps": ()}),
}


def is_elementwise(op: Op) -> bool:
    """Return True if element i of the result depends only on elements i of the inputs."""
    return op in OPS and OPS[op].is_elementwise
