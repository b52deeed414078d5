"""The folded matrix-vector product of MXINT: mantissas are multiplied, exponents added.

Numbers of a block are mantissa * 2**exponent in steps of 2**-frac_width (`chop.hw.arith.mxint`), so
that exact sums are sums of codes: what `fixed_linear` computes of them. The accumulator counts
steps of the product of both formats and holds any partial sum. With codes x,
|x| <= X = (2**(m-1) - 1) *
2**top, a partial sum has a magnitude of at most

    X * (the largest sum of a row's |weights|) + |bias| + half an output step,

and that, with a sign, is its width: nothing is lost before the one rounding at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.arith.mxint import Mxint, block_of, of_values, on_wire
from chop.hw.design.component import (
    Component,
    Cost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.design.process import Process
from chop.hw.design.samples import BYTE, DOWN, NARROW, WIDE, codes
from chop.hw.design.stream import Stream
from chop.hw.design.twin import Twin
from chop.hw.library.fixed_linear import (
    Weights,
    check_lanes,
    dot_latency,
    linear_process,
    parameters_of,
)
from chop.hw.lower import Lowerer, Value, blocks, lowers
from chop.hw.lower.engine import row_major
from chop.hw.lower.storage import EXTERNAL
from chop.hw.streams.fixed_to_mxint import check_block
from chop.hw.streams.mxint_to_fixed import block_precision
from chop.nn.quantizers.mxint import MXInt


@dataclass(frozen=True, eq=False)
class BlockWeights(Weights):
    """Weights (outputs, inputs) in blocks along the inputs, as codes; the bias is fixed point."""

    @property
    def wire(self) -> Mxint:
        """How the weights of one output lie in memory."""
        assert isinstance(self.weight_format, Mxint), self.weight_format
        return self.weight_format

    def parameters(self) -> dict[str, Parameter]:
        return {
            **block_precision("WEIGHT", self.wire),
            "HAS_BIAS": self.bias is not None,
            **precision("BIAS", self.bias_format),
        }

    def memories(self, in_lanes: int, out_lanes: int) -> tuple[Memory, ...]:
        """As `Weights`, with the exponent of its block above the mantissas of each output."""
        outputs, inputs = self.weight.shape
        beats = Stream((outputs, inputs), in_lanes, self.wire)
        words = np.array(beats.words(self.weight), dtype=object)
        tiles = words.reshape(outputs // out_lanes, out_lanes, -1).transpose(0, 2, 1)
        width, rows = beats.beat_width, tiles.reshape(-1, out_lanes)
        packed = tuple(sum(int(w) << k * width for k, w in enumerate(row)) for row in rows)
        _, *bias = super().memories(in_lanes, out_lanes)
        return Memory("weight", packed, width * out_lanes), *bias


class BlockLinearTwin(Twin):
    """A replay buffer that feeds the dot products and a shifter; `folds` = (input, output)."""

    name = "Block linear"

    def __init__(self, folds: tuple[int, int], lanes: int) -> None:
        self.arguments = (folds, lanes)
        self.folds, self.lanes = folds, lanes

    def process(self) -> Process:
        return linear_process(*self.folds, dot_latency(self.lanes) + 2)


@register
@dataclass(frozen=True, eq=False)
class BlockLinear(Component):
    """weight @ x + bias over the last dimension, cast to `format`."""

    source: Stream
    weights: BlockWeights
    format: Fixed
    lanes: int = 1
    """Of the output."""
    module = "mxint_linear"

    def __post_init__(self) -> None:
        outputs, inputs = self.weights.weight.shape
        check_lanes("mxint_linear", outputs, self.lanes)
        if inputs != self.source.shape[-1]:
            raise ConfigError(
                f"mxint_linear: weights take {inputs} inputs, the stream has {self.source.shape}."
            )
        for number in (self.source.format, self.weights.wire):
            assert isinstance(number, Mxint), number
            check_block("mxint_linear", self.source, number.block)
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream((*self.source.shape[:-1], outputs), self.lanes, self.format)
        object.__setattr__(self, "outputs", (out,))

    @property
    def folds(self) -> tuple[int, int]:
        """Input and output folds."""
        outputs, inputs = self.weights.weight.shape
        return inputs // self.source.lanes, outputs // self.lanes

    @property
    def in_unit(self) -> int:
        found = self.source.format
        assert isinstance(found, Mxint), found
        return math.gcd(found.row, found.block, self.weights.wire.block)

    def golden(self, *data: Ints) -> Ints:
        sums = self.weights.accumulate(data[0], self.source.format)
        return golden.cast(sums, self.weights.frac(self.source.format), self.format)

    @cached_property
    def acc_width(self) -> int:
        """Bits of the accumulator."""
        return self.weights.acc_width(self.source.format, self.format.frac_width)

    def ends(self) -> tuple[Ints, ...]:
        return (self.weights.ends(self.source),)

    def intervals(self) -> Mapping[str, Span]:
        return {"ACC_WIDTH": self.weights.acc_span(self.source.format, self.format)}

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **block_precision("DATA_IN_0", self.source.format),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            **self.weights.parameters(),
            **result_precision(self.format),
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.outputs[0].shape[-1],
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "ACC_WIDTH": self.acc_width,
        }

    def memories(self) -> tuple[Memory, ...]:
        return self.weights.memories(self.source.lanes, self.lanes)

    def twins(self) -> list[Twin]:
        return [BlockLinearTwin(self.folds, self.source.lanes)]

    def reads(self, memory: Memory) -> int:
        return self.source.elements // self.source.shape[-1]

    def cycles(self) -> int:
        vectors = self.source.elements // self.source.shape[-1]
        return vectors * self.folds[0] * self.folds[1]

    def products(self) -> int:
        return self.source.elements * self.outputs[0].shape[-1]

    def cost(self) -> Cost:
        registers = self.lanes * (2 * self.acc_width + 2 * self.format.width)
        operands = (self.lanes + 1) * self.source.beat_width
        multipliers = Cost(self.source.lanes * self.lanes, register_bits=registers + operands)
        return super().cost() + multipliers

    @classmethod
    def cases(cls) -> Sequence[Component]:
        eight, four = MXInt(8, block_size=4), MXInt(4, block_size=2)
        return [  # folds of 1, 2 and more in each direction; the corner (1, n) finds an early bias
            _sample(4, 8, 4, 2, eight),
            _sample(4, 2, 4, 2, eight, b=None),
            _sample(12, 6, 2, 2, eight, MXInt(6, block_size=6), y=DOWN),
            _sample(10, 2, 2, 1, eight, four, b=WIDE, y=Fixed(30, 20)),  # the last block is shorter
            _sample(6, 4, 1, 2, MXInt(5, block_size=3), four, y=Fixed(5, 1, overflow="wrap")),
            _sample(8, 2, 2, 1, MXInt(8, block_size=-1), MXInt(8, block_size=4), b=Fixed(12, 30)),
            _sample(6, 3, 3, 1, MXInt(2, block_size=3), x=NARROW, y=Fixed(6, -4, is_signed=False)),
            _sample(4, 2, 2, 1, MXInt(16, block_size=2), x=Fixed(40, 20), y=Fixed(40, 20)),
        ]


def sample_weights(
    outputs: int, inputs: int, number: MXInt, bias: Fixed | None = BYTE
) -> BlockWeights:
    """Weights of unlike exponents to test with."""
    rng = np.random.default_rng(7)
    spread = 2.0 ** rng.integers(-6, 2, (outputs, inputs))
    wire, matrix = weight_codes(number, rng.normal(0, 1, (outputs, inputs)) * spread)
    if bias is None:
        return BlockWeights(matrix, wire)
    return BlockWeights(matrix, wire, codes(bias, outputs, seed=8), bias)


def _sample(
    inputs: int,
    outputs: int,
    in_lanes: int,
    out_lanes: int,
    number: MXInt,
    weight: MXInt | None = None,
    *,
    x: Fixed = Fixed(16, 8),  # noqa: B008 -- frozen
    b: Fixed | None = BYTE,
    y: Fixed = BYTE,
) -> BlockLinear:
    source = Stream((2, inputs), in_lanes, on_wire(number, x, inputs))
    return BlockLinear(source, sample_weights(outputs, inputs, weight or number, b), y, out_lanes)


# -- from a node -----------------------------------------------------------------------------------


def weight_codes(number: MXInt, values: npt.NDArray[np.float64]) -> tuple[Mxint, Ints]:
    """A matrix (outputs, inputs) brought to `number`: its wire and its codes."""
    made = number.quantize(blocks.doubles(values)).numpy()
    return of_values(number, made, values.shape[1])


def bias_codes(number: MXInt, values: npt.NDArray[np.float64]) -> tuple[Fixed, Ints]:
    """A bias brought to `number`: fixed point with all its numbers, and its codes."""
    made = number.quantize(blocks.doubles(values)).numpy()
    wire, found = of_values(number, made, len(made))
    low, high = int(found.min()), int(found.max())
    return Span(min(low, 0), max(high, 0), wire.frac_width).format, found


def weights_of(node: fx.Node, weight: Tensor, bias: Tensor | None) -> BlockWeights:
    """Weight and bias in the formats that the node brings them to."""
    wire, matrix = weight_codes(blocks.parameter_blocks(node, "weight"), _numbers(weight))
    if bias is None:
        return BlockWeights(matrix, wire)
    number, vector = bias_codes(blocks.parameter_blocks(node, "bias"), _numbers(bias))
    return BlockWeights(matrix, wire, vector, number)


def _numbers(tensor: Tensor) -> Any:
    return tensor.detach().double().cpu().numpy()


def _check_ways(low: Lowerer, node: fx.Node) -> None:
    """Refuse what was asked for this node and is there for fixed point alone."""
    if low.storage.by_node.get(node.name) == EXTERNAL:
        told = "weights = 'external' of a layer in MXINT"
        raise low.refuse(node, told, "Allowed: 'memory', or the layer in 'integer'")
    how = low.parallelism.multiplier.get(node.name, "array")
    if how != "array":
        told = f"multiplier '{how}' of a layer in MXINT"
        raise low.refuse(node, told, "Allowed: 'array', or the layer in 'integer'")


@lowers("mxint_linear")
def lower_linear(low: Lowerer, node: fx.Node) -> Value:
    """A folded product of blocks; lanes divide the blocks of both operands."""
    _check_ways(low, node)
    weight, bias = parameters_of(low, node)
    outputs, inputs = weight.shape
    number = blocks.needed_blocks(low, node, "data_in_0")
    weights = weights_of(node, weight, bias)
    unit = math.gcd(inputs, block_of(number, inputs), weights.wire.block)
    in_lanes, out_lanes = low.parallelism.of(node.name, unit, outputs)
    value = blocks.block_operand(low, node, 0, in_lanes)
    source = low.stream(value)
    layer = BlockLinear(
        source, weights, low.result_format(node, weights.span(source.format)), out_lanes
    )
    shape = (*value.shape[:-1], outputs)
    return Value(low.add(node, layer, value), shape, row_major(shape))
