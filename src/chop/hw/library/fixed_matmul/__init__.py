"""The product of two computed matrices (activation times activation), in fixed point or MXINT."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.arith.mxint_wire import block_of, on_wire
from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.design.component import Component, Parameter, precision, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.design import Wire
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, stream
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_linear import (
    ExternalLinearTwin,
    FoldedProduct,
    acc_bits,
    check_lanes,
    with_half,
)
from chop.hw.lower import Lowerer, Value, lowers, mxint_values
from chop.hw.lower.engine import row_major
from chop.hw.reference.exact import SAFE_FLOAT, Exact, fitted, reach
from chop.hw.reference.exact_ops import Arguments, exact_op
from chop.nn.quantizers.mxint import MXInt


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


class MatmulTwin(ExternalLinearTwin):
    """A folded product whose weights are the tiles of a double buffer."""

    name = "Streamed linear"
    sources = (0, -1)


@register
@dataclass(frozen=True)
class Matmul(FoldedProduct):
    """left (…, rows, inner) @ right, which is (…, inner, columns), or (…, columns, inner)."""

    left: Stream
    right: Stream
    format: Fixed
    is_transposed: bool = False
    """True if `right` comes as (…, columns, inner)."""
    lanes: int = 1
    """Output lanes."""
    clock_mhz: float = field(default=DEFAULT_MHZ, kw_only=True)
    module = "fixed_matmul"
    has_late_weights = True

    def __post_init__(self) -> None:
        self._check_shapes()
        shape = (*self.left.shape[:-1], self.columns)
        object.__setattr__(self, "inputs", (self.left, self.right))
        object.__setattr__(self, "outputs", (Stream(shape, self.lanes, self.format),))
        self.check_blocks()

    def _check_shapes(self) -> None:
        ranks = (len(self.left.shape), len(self.right.shape))
        if min(ranks) < 2 or self.left.shape[:-2] != self.right.shape[:-2]:
            raise ConfigError(
                f"{self.kind}: operands must be matrices with the same leading dimensions, "
                f"got {self.left.shape} and {self.right.shape}."
            )
        inner = self.right.shape[-1 if self.is_transposed else -2]
        if inner != self.left.shape[-1]:
            raise ConfigError(
                f"{self.kind}: inner sizes must be equal, got {self.left.shape[-1]} and {inner}."
            )
        check_lanes(self.kind, self.columns, self.lanes)
        lanes = self.left.lanes if self.is_transposed else self.lanes
        if self.right.lanes != lanes:
            raise ConfigError(
                f"{self.kind}: data_in_1 must have the lanes of what its rows run along, "
                f"{lanes}, got {self.right.lanes}."
            )
        if self.right.format.shared_width and not self.is_transposed:
            raise ConfigError(
                f"{self.kind}: data_in_1 in MXINT must be transposed, (…, columns, inner): its "
                f"blocks lie along the inner size."
            )

    @property
    def operands(self) -> tuple[Fixed, Fixed]:
        return self.left.format, self.right.format

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.right.shape[-2 if self.is_transposed else -1]

    @property
    def rows(self) -> int:
        """Rows of the result. Each matrix `right` is read once per row."""
        return self.left.shape[-2]

    @property
    def heads(self) -> int:
        """Matrix products per tensor."""
        return math.prod(self.left.shape[:-2])

    @property
    def frac_width(self) -> int:
        """Fractional bits of the accumulator."""
        return self.left.format.frac_width + self.right.format.frac_width

    def golden(self, *data: Ints) -> Ints:
        a, b = (golden.wide(x, self.acc_width) for x in data)
        sums = np.matmul(a, np.swapaxes(b, -1, -2) if self.is_transposed else b)
        return golden.cast(sums, self.frac_width, self.format)

    def span(self) -> Span:
        """Return the range of exact sums, for any operands."""
        return product_span(self.left.format, self.right.format, self.left.shape[-1])

    @property
    def acc_width(self) -> int:
        exact = self.span()
        return acc_bits(max(-exact.low, exact.high), self.frac_width - self.format.frac_width)

    def intervals(self) -> Mapping[str, Span]:
        return {"ACC_WIDTH": with_half(self.span(), self.format)}

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **self.common_parameters(),
            "DATA_IN_0_TENSOR_SIZE_DIM_1": self.rows,
            **precision("DATA_IN_1", self.right.format),
            "DATA_IN_1_IS_TRANSPOSED": self.is_transposed,
        }

    def _steps(self) -> int:
        """Return the steps of one matrix product."""
        return self.rows * self.folds[0] * self.folds[1]

    def twins(self) -> list[Twin]:
        tiles = TileTwin(self.right.beats // self.heads, self._steps())
        return [tiles, MatmulTwin(self.folds, self.latency)]

    def cycles(self) -> int:
        return max(super().cycles(), self.heads * self._steps())

    def memory_bits(self) -> int:
        return 2 * self.right.beats // self.heads * self.right.beat_width

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


@register
@dataclass(frozen=True)
class BlockMatmul(Matmul):
    """Product of two MXINT matrices; `right` comes as (…, columns, inner), blocks along `inner`."""

    is_transposed: bool = field(default=True, init=False)
    name = "mxint_matmul"

    @classmethod
    def cases(cls) -> Sequence[Component]:
        eight, four = MXInt(8, block_size=4), MXInt(4, block_size=2)
        rows = MXInt(4, block_size=-1)
        return [  # rows, inner, columns; lanes
            _block_sample((2, 8, 4), (4, 2), eight, eight, heads=2),
            _block_sample((3, 6, 4), (2, 1), eight, four, z=WIDE),  # the last block is shorter
            _block_sample((5, 1, 1), (1, 1), MXInt(3, block_size=1), eight, z=DOWN),
            _block_sample((2, 6, 2), (3, 2), MXInt(8, block_size=-1), MXInt(5, block_size=3)),
            *(_block_sample((2, 20, 2), (20, 1), rows, rows).for_clock(mhz) for mhz in (50, 150)),
        ]


def product_span(left: Fixed, right: Fixed, inner: int) -> Span:
    """Return the range of exact sums of `inner` products of numbers of these formats."""
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


def _block_sample(
    sizes: tuple[int, int, int],
    lanes: tuple[int, int],
    x: MXInt,
    y: MXInt,
    *,
    heads: int = 1,
    z: Fixed = BYTE,
) -> BlockMatmul:
    rows, inner, columns = sizes
    left, right = (
        Stream((heads, count, inner), lanes[0], on_wire(number, Fixed(16, 8), inner))
        for count, number in ((rows, x), (columns, y))
    )
    return BlockMatmul(left, right, z, lanes[1])


@lowers("fixed_matmul")
def lower_matmul(low: Lowerer, node: fx.Node) -> Value:
    """Add data_in_0 @ data_in_1, one product for each index of the leading dimensions."""
    sources = low.operands(node)
    if len(sources) < 2 or any(source not in low.values for source in sources):
        raise low.refuse(node, "a constant operand", "Allowed: two tensors that are computed")
    shapes = [low.values[source].shape for source in sources]
    if min(map(len, shapes)) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        raise low.refuse(
            node,
            f"operands of shape {shapes[0]} and {shapes[1]}",
            "Allowed: matrices with the same leading dimensions, behind the batch",
        )
    inner, columns = shapes[1][-2:]
    add = _add_blocks if mxint_values.takes_blocks(node) else _add_fixed
    shape = (*shapes[0][:-1], columns)
    return Value(add(low, node, inner, columns), shape, row_major(shape))


def _add_fixed(low: Lowerer, node: fx.Node, inner: int, columns: int) -> Wire:
    left, right = low.operand(node, 0), low.operand(node, 1)
    in_lanes, out_lanes = low.parallelism.of(node.name, inner, columns)
    left = low.arrange(node, left, row_major(left.shape), left.shape)
    right, is_transposed = _either_way(low, node, right)
    a = Stream(left.shape, in_lanes, low.stream(left).format)
    b_shape = (*right.shape[:-2], columns, inner) if is_transposed else right.shape
    b = Stream(b_shape, in_lanes if is_transposed else out_lanes, low.stream(right).format)
    number = low.result_format(node, product_span(a.format, b.format, inner))
    return low.add(node, Matmul(a, b, number, is_transposed, out_lanes), left, right)


def _either_way(low: Lowerer, node: fx.Node, right: Value) -> tuple[Value, bool]:
    """Return the second operand as it flows if possible, and whether it is transposed."""
    places = row_major(right.shape).reshape(right.shape)
    turned: Ints = np.swapaxes(places, -1, -2).reshape(-1)
    if np.array_equal(right.order, turned):
        return right, True
    return low.arrange(node, right, places.reshape(-1), right.shape), False


def _add_blocks(low: Lowerer, node: fx.Node, inner: int, columns: int) -> Wire:
    axes = (-1, -2)  # the blocks of both operands lie along the inner size
    sizes = [
        block_of(mxint_values.needed_blocks(low, node, f"data_in_{k}", axis), inner)
        for k, axis in enumerate(axes)
    ]
    in_lanes, out_lanes = low.parallelism.of(node.name, math.gcd(inner, *sizes), columns)
    left, right = (
        mxint_values.block_operand(low, node, k, in_lanes, axis=axis) for k, axis in enumerate(axes)
    )
    a, b = low.stream(left), low.stream(right)
    number = low.result_format(node, product_span(a.format, b.format, inner))
    return low.add(node, BlockMatmul(a, b, number, out_lanes), left, right)


@exact_op("matmul bmm", "input other")
def exact_matmul(a: Arguments) -> Exact:
    """Return input @ other."""
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
