"""Faults in the casts to and from MXINT and in products of blocks, and a design that has them."""

from mutants import BLOCK_MODULES, mutants_of

from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint_wire import on_wire
from chop.hw.design.samples import BYTE, COUNT, stream
from chop.hw.design.stream import Stream
from chop.hw.library.components import BlockLinear, BlockMatmul, FromMxint, ToMxint
from chop.hw.library.fixed_linear import sample_blocks
from chop.hw.sim.component_check import bench_design
from chop.nn.quantizers import MXInt

MXINT_MUTANTS = mutants_of(*BLOCK_MODULES)


def blocks():
    """Every kind of component that has blocks, each between its own ports."""
    wide, eight, four = Fixed(16, 9), MXInt(8, block_size=4), MXInt(4, block_size=2)
    wire, short = on_wire(eight, wide, 10), on_wire(eight, wide, 4)
    fine = sample_blocks(4, 10, MXInt(6, block_size=2), Fixed(12, 24))
    return bench_design(
        [
            ToMxint(stream(2, 12, lanes=2, number=wide), eight),
            ToMxint(stream(2, 10, lanes=2, number=wide), eight),  # the last block is shorter
            ToMxint(stream(3, 6, number=COUNT), MXInt(4, block_size=3)),
            ToMxint(stream(8, number=wide), MXInt(5, exponent_width=3, block_size=4)),
            FromMxint(Stream((2, 10), 2, wire), Fixed(12, 6)),
            FromMxint(Stream((2, 10), 1, wire), Fixed(wire.width, wire.frac_width)),
            BlockLinear(Stream((2, 10), 2, wire), sample_blocks(4, 10, four), BYTE, 2),
            BlockLinear(Stream((4,), 4, short), sample_blocks(6, 4, eight), BYTE, 1),
            BlockLinear(Stream((10,), 1, wire), fine, Fixed(16, 8), 2),
            BlockLinear(Stream((10,), 2, wire), sample_blocks(4, 10, four, None), BYTE, 4),
            BlockMatmul(Stream((2, 3, 10), 2, wire), Stream((2, 4, 10), 2, wire), BYTE, 2),
        ]
    )
