"""Upper estimate of the cells of a decode engine on ECP5, from its sizes.

Multipliers and block RAMs are counted. LUTs and flip-flops are interpolated between two engines
that Yosys mapped for the shapes of SmolLM2-135M, with beats of 32 and 128 bits.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from chop.hw.area.inventory import Inventory, bits_for
from chop.hw.decode.decode_emit import DecodeDesign, engine_tables
from chop.hw.decode.decode_program import WORD_WIDTH

MEASURED_HEAD = 64
"""Elements of a head of the measured engines. A smaller head counts as one of these."""
LUT_BASE, LUT_PER_BIT, LUT_PER_ELEMENT = 12_260, 38.1, 144
"""LUTs of an engine without memory port, for each bit of a beat, and for each further element of a
head: three LUTs for each of the 48 bits of its sum. A carry cell is two LUTs."""
FF_BASE, FF_PER_BIT, FF_PER_ELEMENT = 10_070, 19.5, 60
"""Flip-flops, likewise; the sum of an element has 48."""
MARGIN = 1.1
"""Factor on LUTs and flip-flops for what the interpolation leaves out, such as the vocabulary."""
OTHER_MULTIPLIERS = 35
"""Multipliers besides those of weights and values, for a residual stream of 24 bits."""


@dataclass(frozen=True)
class EngineArea:
    """Cells of an engine by kind."""

    lut: int
    ff: int
    dsp: int
    bram: int

    def cells(self) -> dict[str, int]:
        """Return the counts by kind."""
        return asdict(self)


def engine_area(design: DecodeDesign) -> EngineArea:
    """Return the estimated cells of an engine."""
    data_width = design.options.data_width
    formats = design.model.options
    lanes = data_width // formats.lane_width
    more = max(0, design.model.shape.head_dim - MEASURED_HEAD)
    lut = LUT_BASE + LUT_PER_BIT * data_width + LUT_PER_ELEMENT * more
    ff = FF_BASE + FF_PER_BIT * data_width + FF_PER_ELEMENT * more
    dsp = lanes + data_width // formats.cache_width + OTHER_MULTIPLIERS
    return EngineArea(math.ceil(MARGIN * lut), math.ceil(MARGIN * ff), dsp, _block_rams(design))


def _block_rams(design: DecodeDesign) -> int:
    model, data_width = design.model, design.options.data_width
    lanes = data_width // model.options.lane_width
    shape = model.shape
    vector = max(shape.hidden, shape.intermediate, shape.heads * shape.head_dim)
    memories = Inventory("ecp5")
    memories.rom([i.word() for i in design.program], WORD_WIDTH, copies=2)
    for table in engine_tables(model):
        memories.rom(table.words, table.width)
    memories.ram(design.options.queue - 1, data_width, is_block=True)
    memories.ram(2 << bits_for(vector // lanes), lanes * 8)
    memories.ram(shape.hidden, model.residual_width)
    memories.ram(1 << bits_for(model.options.max_length), 16)
    return int(memories.amounts.get("bram", 0))
