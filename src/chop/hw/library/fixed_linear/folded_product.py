"""The folded matrix-vector product: components and cycle model of `fixed_linear`.

An operand is fixed point or MXINT. Its format says the precision, the width of a beat, and whether
sums need a shifter, which takes one cycle. Numbers of an MXINT block are mantissa * 2**exponent in
steps of 2**-frac_width (`chop.hw.arith.mxint_wire`). So exact sums are sums of codes, as in fixed
point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Self

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.arith.mxint_wire import Mxint, on_wire
from chop.hw.design.clock import DEFAULT_MHZ, adders_per_register, operand_registers
from chop.hw.design.component import (
    LARGEST_IN_LOGIC,
    Component,
    ComponentCost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, row_ends, stream
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_linear.layer_weights import (
    BlockWeights,
    ExternalWeights,
    Weights,
    sample_blocks,
    sample_weights,
)
from chop.hw.streams.fixed_to_mxint import check_block
from chop.nn.quantizers.mxint import MXInt


class LinearTwin(Twin):
    """A replay buffer that feeds the dot products; `folds` = (input, output)."""

    name = "Linear"
    takes_weights = False
    """True if the weights are input 1, which may be late."""

    def __init__(self, folds: tuple[int, int], latency: int) -> None:
        self.arguments = (folds, latency)
        self.folds, self.latency = folds, latency

    def process(self) -> Process:
        return linear_process(*self.folds, self.latency, self.takes_weights)


class ExternalLinearTwin(LinearTwin):
    """The same, with a stream of weights."""

    name = "External linear"
    takes_weights = True


def dot_latency(lanes: int, registers: int = 1, step: int = 1) -> int:
    """Return the latency of `fixed_dot_product`: operand, product and sum registers, and a tree.

    `registers`: registers of an operand. `step`: levels of the tree between registers.

    >>> [dot_latency(lanes) for lanes in (1, 4, 8, 12, 16, 64)]
    [2, 5, 6, 7, 7, 9]
    """
    chains = -(-lanes // 4)
    return registers + min(lanes, 4) + -(-(chains - 1).bit_length() // step)


@lru_cache(maxsize=256)
def linear_process(
    in_folds: int, out_folds: int, latency: int, takes_weights: bool = False
) -> Process:
    """Return the control of the product.

    Each output fold reads the vector as it comes; the last one frees it beat by beat. If the
    weights are a stream, each step takes a beat of it.
    """
    one, takes = {0: 1}, (1,) if takes_weights else ()
    again = (
        Phase(in_folds - 1, takes, one, rises=1),
        Phase(1, takes, {0: in_folds}, gives=(0,)),
    )
    last = (
        Phase(in_folds - 1, takes, one, frees=one),
        Phase(1, takes, one, frees=one, gives=(0,)),
    )
    slots = 2 if out_folds == 1 or in_folds < 2 else in_folds
    inputs = (slots, 0) if takes_weights else (slots,)
    return Process((*again * (out_folds - 1), *last), inputs, latency)


def check_lanes(where: str, channels: int, lanes: int) -> None:
    """Raise an error unless `lanes` divides `channels`."""
    if lanes < 1 or channels % lanes:
        raise ConfigError(f"{where}: parallelism must divide {channels} outputs, got {lanes}.")


class FoldedProduct(Component):
    """Vectors times a matrix, folded over both dimensions, cast to `format`."""

    format: Fixed
    lanes: int
    clock_mhz: float

    @property
    def operands(self) -> tuple[Fixed, Fixed]:
        """Formats of the vectors and of the matrix."""
        raise NotImplementedError

    @property
    def has_late_weights(self) -> bool:
        """True if the matrix comes from block RAM, late in a cycle."""
        raise NotImplementedError

    @property
    def acc_width(self) -> int:
        """Bits of the accumulator, which holds every partial sum."""
        raise NotImplementedError

    @property
    def blocks(self) -> list[int]:
        """Block sizes of the operands in MXINT."""
        return [number.block for number in self.operands if isinstance(number, Mxint)]

    def check_blocks(self) -> None:
        """Raise an error unless every beat is part of one block of each operand."""
        for block in self.blocks:
            check_block(self.kind, self.inputs[0], block)

    @property
    def has_shifter(self) -> bool:
        """True if shared exponents shift the sums."""
        return any(number.shared_width for number in self.operands)

    @property
    def folds(self) -> tuple[int, int]:
        """Input and output folds."""
        vector = self.inputs[0]
        return vector.shape[-1] // vector.lanes, self.output.shape[-1] // self.lanes

    @property
    def in_unit(self) -> int:
        return math.gcd(self.inputs[0].shape[-1], *self.blocks)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of an operand, and levels of the adder tree between registers."""
        operand = operand_registers(self.clock_mhz, is_late=self.has_late_weights)
        return operand, adders_per_register(self.clock_mhz)

    @property
    def latency(self) -> int:
        """Cycles from an operand to the accumulator."""
        return dot_latency(self.inputs[0].lanes, *self.registers) + 1 + self.has_shifter

    def for_clock(self, clock_mhz: float) -> Component:
        return replace(self, clock_mhz=clock_mhz)  # type: ignore[type-var]

    def common_parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the vectors, the result and the pipeline."""
        names = ("OPERAND_REGISTERS", "TREE_STEP")
        pipeline = {n: k for n, k in zip(names, self.registers, strict=True) if k != 1}
        return {
            **precision("DATA_IN_0", self.operands[0]),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.inputs[0].shape[-1],
            "DATA_IN_0_PARALLELISM_DIM_0": self.inputs[0].lanes,
            **result_precision(self.format),
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.output.shape[-1],
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "ACC_WIDTH": self.acc_width,
            **pipeline,
        }

    def products(self) -> int:
        return self.inputs[0].elements * self.output.shape[-1]

    def memory_bits(self) -> int:
        """Return the bits of the memories of matrix and bias."""
        raise NotImplementedError

    def cost(self) -> ComponentCost:
        sums = (1 + self.has_shifter) * self.acc_width
        registers = self.lanes * (sums + 2 * self.format.width)
        operands = (self.lanes + 1) * self.inputs[0].beat_width
        multipliers = self.inputs[0].lanes * self.lanes
        return ComponentCost(multipliers, self.memory_bits(), registers + operands)


@register
@dataclass(frozen=True, eq=False)
class Linear(FoldedProduct):
    """weight @ x + bias over the last dimension, cast to `format`."""

    source: Stream
    weights: Weights
    format: Fixed
    lanes: int = 1
    """Output lanes."""
    clock_mhz: float = field(default=DEFAULT_MHZ, kw_only=True)
    module = "fixed_linear"

    def __post_init__(self) -> None:
        outputs, inputs = self.weights.weight.shape
        check_lanes(self.kind, outputs, self.lanes)
        if inputs != self.source.shape[-1]:
            raise ConfigError(
                f"{self.kind}: weights take {inputs} inputs, the stream has {self.source.shape}."
            )
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream((*self.source.shape[:-1], outputs), self.lanes, self.format)
        object.__setattr__(self, "outputs", (out,))
        self.check_blocks()

    @property
    def operands(self) -> tuple[Fixed, Fixed]:
        return self.source.format, self.weights.weight_format

    def golden(self, *data: Ints) -> Ints:
        sums = self.weights.accumulate(data[0], self.source.format)
        return golden.cast(sums, self.weights.frac(self.source.format), self.format)

    @cached_property
    def acc_width(self) -> int:
        return self.weights.acc_width(self.source.format, self.format.frac_width)

    def ends(self) -> tuple[Ints, ...]:
        return (self.weights.ends(self.source),)

    def intervals(self) -> Mapping[str, Span]:
        return {"ACC_WIDTH": self.weights.acc_span(self.source.format, self.format)}

    def parameters(self) -> Mapping[str, Parameter]:
        return {**self.common_parameters(), **self.weights.parameters()}

    @property
    def has_late_weights(self) -> bool:
        return self.weights.weight_bits(self.source.lanes) > LARGEST_IN_LOGIC

    def memories(self) -> tuple[Memory, ...]:
        return self.weights.memories(self.source.lanes, self.lanes)

    def memory_bits(self) -> int:
        return self.weights.memory_bits(self.source.lanes)

    def reads(self, memory: Memory) -> int:
        return self.vectors

    def twins(self) -> list[Twin]:
        return [LinearTwin(self.folds, self.latency)]

    def cycles(self) -> int:
        return self.vectors * self.folds[0] * self.folds[1]

    @property
    def vectors(self) -> int:
        """Vectors per tensor. The weights are read once per vector."""
        return self.source.elements // self.source.shape[-1]

    @classmethod
    def sample(
        cls,
        inputs: int,
        outputs: int,
        in_lanes: int,
        out_lanes: int,
        *,
        x: Fixed = BYTE,
        w: Fixed = BYTE,
        b: Fixed | None = BYTE,
        y: Fixed = BYTE,
    ) -> Self:
        """Return a layer to test with."""
        source = stream(inputs, lanes=in_lanes, number=x)
        return cls(source, sample_weights(outputs, inputs, w, b), y, out_lanes)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [  # folds of 1, 2 and more in each direction; the corner (1, n) finds an early bias
            cls.sample(4, 8, 4, 4),
            cls.sample(4, 8, 4, 2),
            cls.sample(4, 2, 4, 2),
            cls.sample(6, 4, 3, 4),
            cls.sample(8, 4, 2, 2, x=NARROW, w=NARROW, b=NARROW),
            cls.sample(6, 6, 1, 1, w=NARROW, b=None),
            cls.sample(12, 3, 6, 3, b=WIDE, y=WIDE),
            cls.sample(10, 6, 5, 2, b=Fixed(12, 11)),
            cls.sample(8, 2, 8, 1, x=WIDE, w=WIDE, y=Fixed(6, 1)),
            cls.sample(18, 2, 18, 1),
            cls.sample(5, 3, 1, 3, y=Fixed(16, 10)),
            cls.sample(6, 4, 2, 2, w=BIT, b=BIT, y=Fixed(12, 4)),
            cls.sample(6, 4, 3, 2, x=COUNT, w=COUNT, b=COUNT, y=DOWN),
            cls.sample(6, 4, 6, 1, x=COUNT, y=COUNT),
            cls.sample(4, 4, 2, 2, w=COUNT, y=Fixed(5, 1, narrow=True)),
            cls.sample(4, 4, 2, 2, y=Fixed(5, 1, overflow="wrap", rounding="nearest_away")),
            cls.sample(
                4, 2, 2, 1, x=Fixed(32, 16), w=Fixed(32, 20), b=Fixed(32, 30), y=Fixed(32, 12)
            ),
            cls.sample(4, 2, 2, 1, x=NARROW, w=NARROW, b=None, y=Fixed(3, -12)),
            cls.sample(4, 2, 2, 1, x=NARROW, w=NARROW, b=None, y=Fixed(3, -12, rounding="floor")),
            cls.sample(4, 2, 2, 1, x=BIT, w=BIT, b=None, y=Fixed(5, 0)),
            cls.sample(32, 10, 4, 2),  # weights in block RAM
            *(cls.sample(18, 2, 18, 1).for_clock(mhz) for mhz in (50, 150)),
        ]


@register
@dataclass(frozen=True, eq=False)
class ExternalLinear(Linear):
    """Linear layer that receives all weights from outside, once per vector.

    A beat has the weights of one step, as a word of the memory of `Linear`: by output fold, then
    input fold, and in a beat element (output lane * input lanes + input lane).
    """

    weights: ExternalWeights
    name, pins = "fixed_linear_external", ("data_in_0", "weight")
    has_late_weights = False

    def __post_init__(self) -> None:
        super().__post_init__()
        beats = self.weights.stream(self.vectors, self.source.lanes, self.lanes)
        object.__setattr__(self, "inputs", (self.source, beats))

    def golden(self, *data: Ints) -> Ints:
        number = self.source.format
        x = data[0].reshape(len(data[0]), self.vectors, -1)
        sums = self.weights.accumulate_given(x, data[1], number, self.source.lanes)
        codes = golden.cast(sums, self.weights.frac(number), self.format)
        return codes.reshape(-1, *self.output.shape)

    def ends(self) -> tuple[Ints, ...]:
        return row_ends(self.inputs)

    def twins(self) -> list[Twin]:
        return [ExternalLinearTwin(self.folds, self.latency)]

    @classmethod
    def cases(cls) -> Sequence[Component]:
        layers = [case for case in Linear.cases()[::2] if isinstance(case, Linear)]
        streams = [replace(layer.source, shape=(3, *layer.source.shape)) for layer in layers]
        return [
            cls(source, layer.weights.external(), layer.format, layer.lanes)
            for source, layer in zip(streams, layers, strict=True)
        ]


@register
@dataclass(frozen=True, eq=False)
class BlockLinear(Linear):
    """Linear layer of MXINT data and weights; blocks along the inputs."""

    weights: BlockWeights
    name = "mxint_linear"

    @classmethod
    def cases(cls) -> Sequence[Component]:
        eight, four = MXInt(8, block_size=4), MXInt(4, block_size=2)
        return [  # folds as in `Linear.cases`
            _sample(4, 8, 4, 2, eight),
            _sample(4, 2, 4, 2, eight, b=None),
            _sample(12, 6, 2, 2, eight, MXInt(6, block_size=6), y=DOWN),
            _sample(10, 2, 2, 1, eight, four, b=WIDE, y=Fixed(30, 20)),  # the last block is shorter
            _sample(6, 4, 1, 2, MXInt(5, block_size=3), four, y=Fixed(5, 1, overflow="wrap")),
            _sample(8, 2, 2, 1, MXInt(8, block_size=-1), MXInt(8, block_size=4), b=Fixed(12, 30)),
            _sample(6, 3, 3, 1, MXInt(2, block_size=3), x=NARROW, y=Fixed(6, -4, is_signed=False)),
            _sample(4, 2, 2, 1, MXInt(16, block_size=2), x=Fixed(40, 20), y=Fixed(40, 20)),
            _sample(32, 10, 4, 2, eight),  # weights in block RAM
            *(_sample(20, 2, 20, 1, MXInt(6, block_size=20)).for_clock(mhz) for mhz in (50, 150)),
        ]


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
    return BlockLinear(source, sample_blocks(outputs, inputs, weight or number, b), y, out_lanes)
