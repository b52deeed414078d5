"""The product of two matrices that are both computed: activation times activation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.design.clock import DEFAULT_MHZ, adders_per_register, operand_registers
from chop.hw.design.component import (
    Component,
    Cost,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, stream
from chop.hw.design.stream import Stream
from chop.hw.design.twin import Twin
from chop.hw.library.fixed_linear import (
    check_lanes,
    dot_latency,
    linear_process,
    register_parameters,
    with_half,
)
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import row_major
from chop.hw.reference.exact import SAFE_FLOAT, Exact, fitted, reach
from chop.hw.reference.exact_ops import Arguments, exact_op


class TileTwin(Twin):
    """A double buffer in block RAM: `beats` in, then `tiles` out, through one register."""

    name = "Tiles"
    sources = (1,)

    def __init__(self, beats: int, tiles: int) -> None:
        self.arguments = (beats, tiles)
        self.beats, self.tiles = beats, tiles

    def process(self) -> Process:
        whole = {0: self.beats}
        last = Phase(needs=whole, frees=whole, gives=(0,))
        phases = (Phase(self.tiles - 1, needs=whole, gives=(0,)), last)
        return Process(phases, (2 * self.beats,), depth=1, slides=True)


class MatmulTwin(Twin):
    """A folded product whose weights are a stream; `folds` = (input, output)."""

    name = "Streamed linear"
    sources = (0, -1)

    def __init__(
        self, folds: tuple[int, int], lanes: int, registers: int = 1, step: int = 1
    ) -> None:
        self.arguments = (folds, lanes, registers, step)
        self.folds, self.latency = folds, dot_latency(lanes, registers, step) + 1

    def process(self) -> Process:
        return linear_process(*self.folds, self.latency, True)


@register
@dataclass(frozen=True)
class Matmul(Component):
    """left (…, rows, inner) @ right, which is (…, inner, columns), or (…, columns, inner)."""

    left: Stream
    right: Stream
    format: Fixed
    is_transposed: bool = False
    """Whether `right` comes as (…, columns, inner)."""
    lanes: int = 1
    """Of the output."""
    clock_mhz: float = field(default=DEFAULT_MHZ, kw_only=True)
    module = "fixed_matmul"

    def __post_init__(self) -> None:
        self._check()
        shape = (*self.left.shape[:-1], self.columns)
        object.__setattr__(self, "inputs", (self.left, self.right))
        object.__setattr__(self, "outputs", (Stream(shape, self.lanes, self.format),))

    def _check(self) -> None:
        ranks = (len(self.left.shape), len(self.right.shape))
        if min(ranks) < 2 or self.left.shape[:-2] != self.right.shape[:-2]:
            raise ConfigError(
                f"fixed_matmul: operands must be matrices with the same leading dimensions, "
                f"got {self.left.shape} and {self.right.shape}."
            )
        inner = self.right.shape[-1 if self.is_transposed else -2]
        if inner != self.left.shape[-1]:
            raise ConfigError(
                f"fixed_matmul: inner sizes must be equal, got {self.left.shape[-1]} and {inner}."
            )
        check_lanes("fixed_matmul", self.columns, self.lanes)
        wanted = self.left.lanes if self.is_transposed else self.lanes
        if self.right.lanes != wanted:
            raise ConfigError(
                f"fixed_matmul: data_in_1 must have the lanes of what its rows run along, "
                f"{wanted}, got {self.right.lanes}."
            )

    @property
    def columns(self) -> int:
        """Of the result."""
        return self.right.shape[-2 if self.is_transposed else -1]

    @property
    def rows(self) -> int:
        """Of the result: as often is each matrix `right` read."""
        return self.left.shape[-2]

    @property
    def heads(self) -> int:
        """Products of a tensor."""
        return math.prod(self.left.shape[:-2])

    @property
    def folds(self) -> tuple[int, int]:
        """Input and output folds."""
        return self.left.shape[-1] // self.left.lanes, self.columns // self.lanes

    @property
    def frac_width(self) -> int:
        """Fractional bits of the accumulator."""
        return self.left.format.frac_width + self.right.format.frac_width

    def golden(self, *data: Ints) -> Ints:
        a, b = (golden.wide(x, self.acc_width) for x in data)
        sums = np.matmul(a, np.swapaxes(b, -1, -2) if self.is_transposed else b)
        return golden.cast(sums, self.frac_width, self.format)

    def span(self) -> Span:
        """The codes of exact sums, whatever the operands."""
        return product_span(self.left.format, self.right.format, self.left.shape[-1])

    @property
    def acc_width(self) -> int:
        """Bits that hold every partial sum."""
        exact = self.span()
        dropped = self.frac_width - self.format.frac_width
        start = 1 << (dropped - 1) if dropped > 0 else 0  # half a step rides in
        return max((max(-exact.low, exact.high) + start).bit_length() + 1, 3)

    def intervals(self) -> Mapping[str, Span]:
        return {"ACC_WIDTH": with_half(self.span(), self.format)}

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **precision("DATA_IN_0", self.left.format),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.left.shape[-1],
            "DATA_IN_0_TENSOR_SIZE_DIM_1": self.rows,
            "DATA_IN_0_PARALLELISM_DIM_0": self.left.lanes,
            **precision("DATA_IN_1", self.right.format),
            "DATA_IN_1_IS_TRANSPOSED": self.is_transposed,
            **result_precision(self.format),
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.columns,
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "ACC_WIDTH": self.acc_width,
            **register_parameters(*self.registers),
        }

    @property
    def registers(self) -> tuple[int, int]:
        """Of an operand, one of which comes from block RAM, and levels of the tree between two."""
        clock = self.clock_mhz
        return operand_registers(clock, is_late=True), adders_per_register(clock)

    def for_clock(self, clock_mhz: float) -> Component:
        return replace(self, clock_mhz=clock_mhz)

    def twins(self) -> list[Twin]:
        tiles = self.rows * self.folds[0] * self.folds[1]
        beats = self.right.beats // self.heads
        return [TileTwin(beats, tiles), MatmulTwin(self.folds, self.left.lanes, *self.registers)]

    def cycles(self) -> int:
        steps = self.heads * self.rows * self.folds[0] * self.folds[1]
        return max(super().cycles(), steps)

    def products(self) -> int:
        return self.left.elements * self.columns

    def cost(self) -> Cost:
        bits = 2 * self.right.elements // self.heads * self.right.format.width
        registers = self.lanes * (self.acc_width + 2 * self.format.width)
        operands = self.left.lanes * (self.lanes + 1) * self.left.format.width
        return Cost(self.left.lanes * self.lanes, bits, registers + operands)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [  # rows, inner, columns; lanes
            _sample((3, 4, 6), (2, 3)),
            _sample((3, 4, 6), (2, 2), is_transposed=True),
            _sample((2, 6, 4), (6, 4), is_transposed=True, heads=2),
            _sample((2, 6, 4), (3, 4), heads=2),
            _sample((1, 4, 2), (1, 1), is_transposed=True),
            _sample((4, 2, 8), (1, 2)),
            _sample((2, 4, 8), (2, 2)),
            _sample((5, 1, 1), (1, 1)),
            _sample((2, 8, 3), (4, 1), x=COUNT, y=NARROW, z=WIDE),
            _sample((2, 8, 2), (8, 2), x=WIDE, y=COUNT, z=DOWN, is_transposed=True),
            _sample((2, 4, 4), (2, 2), x=BIT, y=BIT, z=Fixed(6, 1, overflow="wrap"), heads=3),
            _sample((2, 3, 2), (1, 2), x=Fixed(32, 16), y=Fixed(32, 20), z=Fixed(40, 12)),
        ]


def product_span(left: Fixed, right: Fixed, inner: int) -> Span:
    """The codes of exact sums of `inner` products of numbers of these formats."""
    ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    low, high = min(*ends, 0) * inner, max(*ends, 0) * inner
    return Span(low, high, left.frac_width + right.frac_width)


def _sample(
    sizes: tuple[int, int, int],
    lanes: tuple[int, int],
    *,
    is_transposed: bool = False,
    heads: int = 1,
    x: Fixed = BYTE,
    y: Fixed = BYTE,
    z: Fixed = BYTE,
) -> Matmul:
    rows, inner, columns = sizes
    turned = (columns, inner) if is_transposed else (inner, columns)
    left = stream(heads, rows, inner, lanes=lanes[0], number=x)
    right = stream(heads, *turned, lanes=lanes[0 if is_transposed else 1], number=y)
    return Matmul(left, right, z, is_transposed, lanes[1])


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_matmul")
def lower_matmul(low: Lowerer, node: fx.Node) -> Value:
    """data_in_0 @ data_in_1, one product for each index of the leading dimensions."""
    if len(low.operands(node)) < 2:
        raise low.refuse(node, "a constant operand", "Allowed: two tensors that are computed")
    left, right = low.operand(node, 0), low.operand(node, 1)
    shapes = (left.shape, right.shape)
    if min(map(len, shapes)) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        raise low.refuse(
            node,
            f"operands of shape {shapes[0]} and {shapes[1]}",
            "Allowed: matrices with the same leading dimensions, behind the batch",
        )
    inner, columns = right.shape[-2:]
    in_lanes, out_lanes = low.parallelism.of(node.name, inner, columns)
    left = low.arrange(node, left, row_major(left.shape), left.shape)
    right, turned = _either_way(low, node, right)
    a = Stream(left.shape, in_lanes, low.stream(left).format)
    b_shape = (*right.shape[:-2], columns, inner) if turned else right.shape
    b = Stream(b_shape, in_lanes if turned else out_lanes, low.stream(right).format)
    number = low.result_format(node, product_span(a.format, b.format, inner))
    component = Matmul(a, b, number, turned, out_lanes)
    shape = (*left.shape[:-1], columns)
    return Value(low.add(node, component, left, right), shape, row_major(shape))


def _either_way(low: Lowerer, node: fx.Node, right: Value) -> tuple[Value, bool]:
    """The second operand, and whether it comes transposed: as it flows, if that will do."""
    places = row_major(right.shape).reshape(right.shape)
    turned: Ints = np.swapaxes(places, -1, -2).reshape(-1)
    if np.array_equal(right.order, turned):
        return right, True
    return low.arrange(node, right, places.reshape(-1), right.shape), False


# -- by definition ---------------------------------------------------------------------------------


@exact_op("matmul bmm", "input other")
def exact_matmul(a: Arguments) -> Exact:
    """input @ other."""
    x: Exact = a["input"]
    y: Exact = a["other"] if "other" in a else a["mat2"]
    bound = reach(x.codes) * reach(y.codes) * x.shape[-1]
    dtype: Any = np.float64 if bound < SAFE_FLOAT else None
    pair = [fitted(e.codes, bound) if dtype is None else e.codes.astype(dtype) for e in (x, y)]
    sums = np.matmul(*pair)
    sums = sums.astype(np.int64) if dtype is not None else sums
    rounded = x.is_rounded or y.is_rounded or bound >= SAFE_FLOAT
    scale = (x.frac_width + y.frac_width, x.divisor * y.divisor)
    return Exact(sums, *scale, rounded or not (x.is_double and y.is_double))
