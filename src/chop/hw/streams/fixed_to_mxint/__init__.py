"""Cast from fixed point to MXINT: the shared exponent of each block, and its mantissas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from chop.errors import ConfigError
from chop.hw.arith.golden import ROUNDINGS, Fixed, Ints
from chop.hw.arith.mxint_wire import Mxint, Places, on_wire, places
from chop.hw.design.component import Component, ComponentCost, Parameter, register, sign_parameter
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BIT, BYTE, COUNT, stream
from chop.hw.design.stream import Stream
from chop.nn.quantizers.mxint import MXInt

LATENCY = 3
"""Registers behind the memory: its output, the exponent, the shifted elements."""


class BlockTwin(Twin):
    """Cycle model: a block leaves after its last beat; every `blocks`-th block has `tail` beats."""

    name = "Blocks"

    def __init__(self, beats: int, blocks: int, tail: int) -> None:
        self.arguments = (beats, blocks, tail)
        self.beats, self.blocks, self.tail = beats, blocks, tail

    def process(self) -> Process:
        return _process(*self.arguments)


@lru_cache(maxsize=256)
def _process(beats: int, blocks: int, tail: int) -> Process:
    phases: list[Phase] = []
    for size in (*[beats] * (blocks - 1), tail):
        first = Phase(needs={0: size}, frees={0: 1}, gives=(0,))
        phases += [first, Phase(size - 1, needs={0: 1}, frees={0: 1}, gives=(0,))]
    return Process(tuple(phases), slots=(beats + 1,), latency=LATENCY)


def check_block(where: str, source: Stream, block: int) -> None:
    """Raise an error unless every beat is part of one block."""
    if block % source.lanes:
        raise ConfigError(
            f"{where}: parallelism must divide the {block} elements of a block, got {source.lanes}."
        )


@register
@dataclass(frozen=True)
class ToMxint(Component):
    """Numbers of a stream in the format `number`, in blocks along the last dimension."""

    source: Stream
    number: MXInt
    module = "fixed_to_mxint"
    has_scales = True

    def __post_init__(self) -> None:
        wire = on_wire(self.number, self.source.format, self.source.shape[-1])
        check_block("fixed_to_mxint", self.source, wire.block)
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, format=wire),))

    @property
    def format(self) -> Mxint:
        """Format of the output."""
        wire = self.outputs[0].format
        assert isinstance(wire, Mxint), wire
        return wire

    @property
    def places(self) -> Places:
        """Lowest and highest place of the highest bit of a block."""
        return places(self.number, self.source.format)

    def golden(self, *data: Ints) -> Ints:
        return self.format.quantize(data[0], self.places.lowest)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            **sign_parameter(self.source.format),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.format.row,
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            "BLOCK_SIZE": self.format.block,
            "LOWEST": self.places.lowest,
            "HIGHEST": self.places.highest,
            "DATA_OUT_0_PRECISION_0": self.format.mantissa,
            "DATA_OUT_0_EXPONENT_WIDTH": self.format.shared_width,
            "DATA_OUT_0_ROUNDING": ROUNDINGS.index(self.format.rounding),
        }

    @property
    def block_beats(self) -> tuple[int, int, int]:
        """Beats of a block, blocks of a row, and beats of the last block."""
        row, block, lanes = self.format.row, self.format.block, self.source.lanes
        return block // lanes, -(-row // block), ((row - 1) % block + 1) // lanes

    def twins(self) -> list[Twin]:
        return [BlockTwin(*self.block_beats)]

    def cost(self) -> ComponentCost:
        memory = (self.block_beats[0] + 1) * self.source.beat_width
        registers = 3 * self.source.beat_width + 2 * self.outputs[0].beat_width
        return ComponentCost(memory_bits=memory, register_bits=registers)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        wide, deep = Fixed(20, 9), Fixed(40, 30)
        return [
            cls(stream(2, 12, lanes=2, number=wide), MXInt(8, block_size=4)),
            cls(stream(14, lanes=2, number=wide), MXInt(6, block_size=4)),  # a tail of one beat
            cls(stream(3, 5, number=wide), MXInt(4, block_size=2, rounding="toward_zero")),
            # a block is a beat
            cls(
                stream(2, 6, lanes=3, number=wide), MXInt(4, block_size=3, rounding="nearest_away")
            ),
            cls(stream(4, lanes=4, number=deep), MXInt(8, block_size=-1)),
            cls(stream(8, number=wide), MXInt(8, block_size=4)),  # two blocks of four beats
            cls(stream(5, number=wide), MXInt(5, exponent_width=3, block_size=32)),  # both ends
            cls(stream(4, number=wide), MXInt(2, exponent_width=1, block_size=2)),
            cls(stream(3, number=BYTE), MXInt(16, block_size=3)),  # the mantissa holds everything
            cls(stream(4, 4, lanes=2, number=COUNT), MXInt(4, block_size=2, rounding="floor")),
            cls(stream(4, number=BIT), MXInt(3, block_size=2)),
            cls(stream(4, number=Fixed(8, 20)), MXInt(4, exponent_width=4, block_size=2)),
            cls(stream(4, number=Fixed(8, -20)), MXInt(4, exponent_width=4, block_size=2)),
        ]
