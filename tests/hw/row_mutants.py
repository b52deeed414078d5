"""Faults in softmax, the norms, lines and the row buffer, and a design that has all of them."""

from mutants import ROW_MODULES, mutants_of

from chop.hw.arith.golden import Fixed
from chop.hw.design.samples import BYTE, COUNT, WIDE, codes, stream
from chop.hw.library.components import LayerNorm, Piecewise, RmsNorm, Softmax
from chop.hw.library.fixed_norm import Affine
from chop.hw.sim.component_check import bench_design

PART = Fixed(10, 9)
ROW_MUTANTS = mutants_of(*ROW_MODULES)


def rows():
    """Every kind of component that has rows or lines, each between its own ports."""
    affine = Affine(codes(BYTE, 6), BYTE, codes(BYTE, 6, seed=8), BYTE)
    plain = Affine(codes(BYTE, 8), BYTE)
    return bench_design(
        [
            Softmax(stream(3, 6, lanes=2), PART, has_mask=True),
            Softmax(stream(2, 4, number=WIDE), Fixed(16, 15), has_mask=True),
            Softmax(stream(3, 3, lanes=3, number=Fixed(10, 2)), PART),
            LayerNorm(stream(3, 6, lanes=2), affine, Fixed(14, 9), eps=0.25),
            LayerNorm(stream(4, 6, lanes=6, number=COUNT), affine, BYTE),
            RmsNorm(stream(2, 8, number=Fixed(4, 2)), plain, Fixed(12, 8)),
            next(c for c in Piecewise.cases() if c.source.lanes == 2),
        ]
    )
