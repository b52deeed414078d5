"""The product of two MXINT matrices that are both computed: activation times activation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.arith.mxint import Mxint, block_of, on_wire
from chop.hw.design.component import Component, Cost, Parameter, register, result_precision
from chop.hw.design.process import Process
from chop.hw.design.samples import BYTE, DOWN, WIDE
from chop.hw.design.stream import Stream
from chop.hw.design.twin import Twin
from chop.hw.library.fixed_linear import check_lanes, dot_latency, linear_process, with_half
from chop.hw.library.fixed_matmul import TileTwin, product_span
from chop.hw.lower import Lowerer, Value, blocks, lowers
from chop.hw.lower.engine import row_major
from chop.hw.streams.fixed_to_mxint import check_block
from chop.hw.streams.mxint_to_fixed import block_precision
from chop.nn.quantizers.mxint import MXInt


class BlockMatmulTwin(Twin):
    """A folded product of blocks whose weights are a stream; `folds` = (input, output)."""

    name = "Streamed block linear"
    sources = (0, -1)

    def __init__(self, folds: tuple[int, int], lanes: int) -> None:
        self.arguments = (folds, lanes)
        self.folds, self.lanes = folds, lanes

    def process(self) -> Process:
        return linear_process(*self.folds, dot_latency(self.lanes) + 2, True)


@register
@dataclass(frozen=True)
class BlockMatmul(Component):
    """left (…, rows, inner) @ right, which comes as (…, columns, inner); blocks along `inner`."""

    left: Stream
    right: Stream
    format: Fixed
    lanes: int = 1
    """Of the output."""
    module = "mxint_matmul"

    def __post_init__(self) -> None:
        a, b = self.left.shape, self.right.shape
        if min(len(a), len(b)) < 2 or a[:-2] != b[:-2] or a[-1] != b[-1]:
            raise ConfigError(
                f"mxint_matmul: operands must be (…, rows, inner) and (…, columns, inner), "
                f"got {a} and {b}."
            )
        check_lanes("mxint_matmul", self.columns, self.lanes)
        if self.right.lanes != self.left.lanes:
            raise ConfigError(
                f"mxint_matmul: data_in_1 must have the lanes of data_in_0, {self.left.lanes}, "
                f"got {self.right.lanes}."
            )
        for stream in (self.left, self.right):
            check_block("mxint_matmul", stream, _wire(stream).block)
        shape = (*a[:-1], self.columns)
        object.__setattr__(self, "inputs", (self.left, self.right))
        object.__setattr__(self, "outputs", (Stream(shape, self.lanes, self.format),))

    @property
    def columns(self) -> int:
        """Of the result."""
        return self.right.shape[-2]

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
    def in_unit(self) -> int:
        return math.gcd(self.left.shape[-1], _wire(self.left).block, _wire(self.right).block)

    @property
    def frac_width(self) -> int:
        """Fractional bits of the accumulator."""
        return self.left.format.frac_width + self.right.format.frac_width

    def golden(self, *data: Ints) -> Ints:
        a, b = (golden.wide(x, self.acc_width) for x in data)
        return golden.cast(np.matmul(a, np.swapaxes(b, -1, -2)), self.frac_width, self.format)

    def span(self) -> Span:
        """The codes of exact sums, whatever the operands."""
        return product_span(self.left.format, self.right.format, self.left.shape[-1])

    @property
    def acc_width(self) -> int:
        """Bits that hold every partial sum: `inner` products of the largest codes, and half."""
        exact = self.span()
        dropped = self.frac_width - self.format.frac_width
        start = 1 << (dropped - 1) if dropped > 0 else 0  # half a step rides in
        return max((max(-exact.low, exact.high) + start).bit_length() + 1, 3)

    def intervals(self) -> Mapping[str, Span]:
        return {"ACC_WIDTH": with_half(self.span(), self.format)}

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **block_precision("DATA_IN_0", self.left.format),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.left.shape[-1],
            "DATA_IN_0_TENSOR_SIZE_DIM_1": self.rows,
            "DATA_IN_0_PARALLELISM_DIM_0": self.left.lanes,
            **block_precision("DATA_IN_1", self.right.format),
            **result_precision(self.format),
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.columns,
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "ACC_WIDTH": self.acc_width,
        }

    def twins(self) -> list[Twin]:
        tiles = self.rows * self.folds[0] * self.folds[1]
        beats = self.right.beats // self.heads
        return [TileTwin(beats, tiles), BlockMatmulTwin(self.folds, self.left.lanes)]

    def cycles(self) -> int:
        steps = self.heads * self.rows * self.folds[0] * self.folds[1]
        return max(super().cycles(), steps)

    def products(self) -> int:
        return self.left.elements * self.columns

    def cost(self) -> Cost:
        bits = 2 * self.right.beats // self.heads * self.right.beat_width
        registers = self.lanes * (2 * self.acc_width + 2 * self.format.width)
        operands = (self.lanes + 1) * self.left.beat_width
        return Cost(self.left.lanes * self.lanes, bits, registers + operands)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        eight, four = MXInt(8, block_size=4), MXInt(4, block_size=2)
        return [  # rows, inner, columns; lanes
            _sample((2, 8, 4), (4, 2), eight, eight, heads=2),
            _sample((3, 6, 4), (2, 1), eight, four, z=WIDE),  # the last block is shorter
            _sample((5, 1, 1), (1, 1), MXInt(3, block_size=1), eight, z=DOWN),
            _sample((2, 6, 2), (3, 2), MXInt(8, block_size=-1), MXInt(5, block_size=3)),
        ]


def _wire(stream: Stream) -> Mxint:
    assert isinstance(stream.format, Mxint), stream.format
    return stream.format


def _sample(
    sizes: tuple[int, int, int],
    lanes: tuple[int, int],
    x: MXInt,
    y: MXInt,
    *,
    heads: int = 1,
    z: Fixed = BYTE,
) -> BlockMatmul:
    rows, inner, columns = sizes
    source = Fixed(16, 8)
    left = Stream((heads, rows, inner), lanes[0], on_wire(x, source, inner))
    right = Stream((heads, columns, inner), lanes[0], on_wire(y, source, inner))
    return BlockMatmul(left, right, z, lanes[1])


# -- from a node -----------------------------------------------------------------------------------


@lowers("mxint_matmul")
def lower_matmul(low: Lowerer, node: fx.Node) -> Value:
    """data_in_0 @ data_in_1, both in blocks along what is summed over."""
    if len(low.operands(node)) < 2:
        raise low.refuse(node, "a constant operand", "Allowed: two tensors that are computed")
    shapes = [low.values[source].shape for source in low.operands(node)]
    if min(map(len, shapes)) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        raise low.refuse(
            node,
            f"operands of shape {shapes[0]} and {shapes[1]}",
            "Allowed: matrices with the same leading dimensions, behind the batch",
        )
    inner, columns = shapes[1][-2:]
    sizes = [
        block_of(blocks.needed_blocks(low, node, name, axis), inner)
        for name, axis in (("data_in_0", -1), ("data_in_1", -2))
    ]
    in_lanes, out_lanes = low.parallelism.of(node.name, math.gcd(inner, *sizes), columns)
    left = blocks.block_operand(low, node, 0, in_lanes)
    right = blocks.block_operand(low, node, 1, in_lanes, axis=-2)
    a, b = low.stream(left), low.stream(right)
    exact = product_span(a.format, b.format, inner)
    component = BlockMatmul(a, b, low.result_format(node, exact), out_lanes)
    shape = (*left.shape[:-1], columns)
    return Value(low.add(node, component, left, right), shape, row_major(shape))
