"""The operations, and for each the rule that tells the shape and dtype of its result.

`OPS` is the table of record: how many inputs an operation takes, which attributes it has, what
comes out. The rules run when a node is added, so a graph that exists is a graph that fits.
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
    """Every operation of the IR. To add one: a member here, a row in `OPS` below, a row in
    `evaluator.KERNELS` and a row in `backward.RULES`; the tests check that no table forgot it."""

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
    EQUAL = "equal"  # 1 where a == b, else 0: picks the winners of max
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
    FUSED = "fused"  # several elementwise operations in one node, made by passes.fuse_elementwise


class Operand(Protocol):
    """What the rules need to know of an input; `ir.Node` is one."""

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
    """The member of `Op` that a name stands for."""
    if isinstance(op, Op):
        return op
    try:
        return Op(op)
    except ValueError:
        names = [member.value for member in Op]
        raise UnknownOpError(f"unknown op '{op}'. {suggest(op, names)}") from None


def find_dtype(where: str, dtype: Any) -> np.dtype[Any]:
    """`dtype` as numpy has it, if it is one of `DTYPES`."""
    found = np.dtype(dtype)
    if found.name not in DTYPES:
        raise DtypeError(f"{where}: dtype must be one of {', '.join(DTYPES)}, got {found.name}.")
    return found


class Step(NamedTuple):
    """One operation inside a FUSED node: operand i is input i, or step i - len(inputs)."""

    op: Op
    operands: tuple[int, ...]


Inferred = tuple[Shape, np.dtype[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """An operation about to become a node: what the rules of `OPS` look at."""

    op: Op
    name: str
    inputs: Sequence[Operand]
    attributes: Mapping[str, Any]

    def infer(self) -> Inferred:
        """Shape, dtype and settled attributes (defaults filled in, axes counted from zero)."""
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
        """How messages name this node."""
        return f"node '{self.name}' ({self.op.value})"

    @property
    def shapes(self) -> str:
        """How messages name the shapes of the inputs."""
        return " and ".join(f"{node.shape} of '{node.name}'" for node in self.inputs)

    def require_float(self) -> None:
        """Refuse integers."""
        for node in self.inputs:
            if node.dtype.kind != "f":
                text = f"needs a floating dtype, got {node.dtype} of '{node.name}'; add a cast."
                raise DtypeError(f"{self.where}: {text}")

    def one_dtype(self) -> np.dtype[Any]:
        """The dtype all inputs share: this IR says every conversion aloud."""
        first = self.inputs[0]
        for node in self.inputs[1:]:
            if node.dtype != first.dtype:
                text = f"dtypes {first.dtype} of '{first.name}' and {node.dtype} of '{node.name}'"
                raise DtypeError(f"{self.where}: {text} differ; add a cast.")
        return first.dtype

    def broadcast_shape(self, *shapes: Shape) -> Shape:
        """The shape all `shapes` can be repeated to, by numpy's rule."""
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            text = f"shapes {self.shapes} do not broadcast together."
            raise ShapeError(f"{self.where}: {text}") from None

    def axes(self, axis: Any) -> tuple[int, ...]:
        """`axis` (None for all, a number, or several) as sorted numbers counted from zero."""
        rank = self.inputs[0].ndim
        given = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
        for one in given:
            if not -rank <= one < rank:
                text = f"axis {one} is out of range for the shape {self.inputs[0].shape}"
                raise ShapeError(f"{self.where}: {text} of '{self.inputs[0].name}'.")
        return tuple(sorted({one % rank for one in given}))


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
    asked = tuple(settled["shape"] or ())
    known = prod(size for size in asked if size != -1)
    shape = tuple(x.size // max(1, known) if size == -1 else size for size in asked)
    if prod(shape) != x.size or asked.count(-1) > 1 or any(size < 1 for size in shape):
        raise ShapeError(f"{call.where}: shape {call.shapes} cannot be reshaped to {asked}.")
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
    kept = [1 if i in axis else size for i, size in enumerate(x.shape) if keepdims or i not in axis]
    return tuple(kept), x.dtype, {"axis": axis} | ({"keepdims": True} if keepdims else {})


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
    """What the IR knows of an operation: inputs (0 for any number), the rule for shape and dtype,
    the attributes with their defaults, whether it works element by element, and on floats only."""

    arity: int
    infer: Callable[[Call, dict[str, Any]], Inferred]
    defaults: Mapping[str, Any] = {}
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
    """Whether element i of the result depends on elements i of the inputs alone."""
    return op in OPS and OPS[op].is_elementwise
