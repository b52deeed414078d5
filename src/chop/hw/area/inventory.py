"""What a component is made of, counted: adders, multiplexers, memories, registers, in bits.

Counts are those of the RTL's declarations and of the mapper's own rules for multipliers and
memories. The coefficients of the models say how many LUTs of a family each of them takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chop.hw.arith.golden import Fixed
from chop.hw.flow.predict.casts import CHAINLESS as CHAINLESS
from chop.hw.flow.predict.casts import Cast
from chop.hw.flow.predict.tables import Bits, mapped_luts

PACKED = "ff_packed"
"""Flip-flops that routing moves into multipliers, which have registers of their own."""
BLOCK_DEPTHS = {36: 512, 18: 1024, 9: 2048, 4: 4096, 2: 8192, 1: 16384}
"""Words of a block RAM, by their width: the 18 kbit blocks of both families."""
BLOCK_COST, ROM_BIT_COST, MUX_COST, AROUND_COST = 128, 1 / 16, 1 / 2, 8
"""Yosys weighs blocks against LUTs: a block is as dear as so many, a bit of a table and of what
chooses between banks as dear as so much of one, and what a memory of LUTs needs for a late word as
dear as so many."""
MAPPED_BITS, MAPPED_WEIGHT_BITS = 8192, 512
"""Of a table, and of one of weights, that is covered with LUTs; those of a larger one are counted:
weights share little."""


@dataclass(frozen=True)
class Fabric:
    """What a mapper has to work with."""

    lut_inputs: int
    ram_words: int
    """Of a LUT RAM."""
    ram_width: int
    ram_luts: int
    multiplier: tuple[int, int]
    """The widest operands of one DSP, signed."""
    least_product: int
    """Bits of the narrowest product that is given a DSP."""
    widest: int
    """Inputs of the widest function that multiplexers behind LUTs make."""

    def wide_lut(self, inputs: int) -> int:
        """LUTs of one function of so many inputs; 0 where it is none.

        >>> [FABRICS["ecp5"].wide_lut(n) for n in (3, 4, 5, 7, 8)]
        [1, 1, 2, 8, 0]
        """
        return 0 if inputs > self.widest else 1 << max(inputs - self.lut_inputs, 0)


FABRICS: Mapping[str, Fabric] = {
    "ecp5": Fabric(4, 16, 4, 4, (18, 18), 0, 7),
    "xc7": Fabric(6, 32, 6, 4, (25, 18), 9, 8),
}


def bits_for(count: int) -> int:
    """Bits that number so many things; at least one."""
    return max((count - 1).bit_length(), 1)


def trailing_zeros(number: int) -> int:
    """Zeros at the end of a number that is not zero.

    >>> [trailing_zeros(n) for n in (1, 12, -8)]
    [0, 2, 3]
    """
    return (number & -number).bit_length() - 1


class Inventory:
    """Amounts by name, for one family."""

    def __init__(self, family: str) -> None:
        self.fabric = FABRICS[family]
        self.amounts: dict[str, float] = {}
        self.longest: dict[str, float] = {}
        """What a path between two registers leads through, the most of each."""

    def path(self, name: str, amount: float) -> None:
        """Something that a path leads through."""
        self.longest[name] = max(self.longest.get(name, 0.0), amount)

    def add(self, name: str, amount: float = 1.0) -> None:
        """More of something."""
        if amount:
            self.amounts[name] = self.amounts.get(name, 0.0) + amount

    def registers(self, bits: int, *, by_multiplier: bool = False) -> None:
        """Flip-flops; those beside a multiplier may become part of it."""
        self.add("ff_dsp" if by_multiplier else "ff", bits)

    def packed(self, bits: float) -> None:
        """Add flip-flops of operands that multipliers take in, where there are multipliers."""
        self.add(PACKED, bits if self.amounts.get("dsp") else 0)

    def skid(self, width: int, count: int = 1) -> None:
        """Skid buffers."""
        self.add("skid", width * count)
        self.add("skids", count)
        self.registers((2 * width + 2) * count)

    def counter(self, size: int, *, extra: int = 0) -> int:
        """A count from 0 to `size` - 1; its bits."""
        bits = bits_for(size + extra)
        if size > 1:
            self.add("counters")
            self.add("count_wrap", size & (size - 1) > 0)
            self.add("count" if bits <= CHAINLESS else "count_wide", bits)
            self.chain(bits)
            self.registers(bits)
            self.path("count", bits)
        return bits

    def chain(self, bits: int, count: int = 1) -> None:
        """Additions of one: short ones are LUTs like others."""
        if bits > CHAINLESS:
            self.add("counted", 2 * -(-bits // 2) * count)

    def constant_sum(self, bits: int, constant: int) -> None:
        """A constant added: bits below its lowest one are as they were."""
        if constant:
            self.chain(bits - trailing_zeros(constant))

    def carry(self, bits: int, count: int = 1) -> None:
        """Adders: their carry chains take LUTs in pairs."""
        self.add("carry", 2 * -(-bits // 2) * count)

    def multiplier(self, a: int, b: int, count: int = 1) -> None:
        """Products of signed numbers of `a` and `b` bits."""
        if min(a, b) < 2 or a + b < self.fabric.least_product:
            self.add("soft_product", a * b * count)
            return
        large, small = self.fabric.multiplier
        wide, narrow = max(a, b), min(a, b)
        blocks = _pieces(wide, large) * _pieces(narrow, small)
        self.add("dsp", blocks * count)
        self.path("product", 1.0)
        if blocks == 1:
            self.add(PACKED, (a + b) * count)  # the register of the product
        else:
            self.path("product_parts", blocks - 1)
            self.add("product_parts", (blocks - 1) * (a + b) * count)

    def cast(
        self,
        width: int,
        frac: int,
        is_signed: bool,
        out: Fixed,
        lanes: int,
        *,
        half: bool = False,
        into_skid: bool = True,
        beside: int = 0,
        is_positive: bool = False,
        is_loose: bool = False,
    ) -> None:
        """`fixed_cast` of numbers of so many bits; `half`: what rounds is added before.

        `beside`: bits of the longest other carry chain; `is_loose`: what lies before it changes
        what the mapper makes of it.
        """
        x = width + (not is_signed)
        dropped = min(frac - out.frac_width, x + 1)
        cast = Cast(x, dropped, out, not is_signed or is_positive, half)
        self.path("cast", max(cast.kept + cast.is_rounded, 1))
        name = "cast_half" if half else "cast_loose" if is_loose else "cast"
        self.add(name, cast.luts(beside, into_skid=into_skid) * lanes)
        self.add("carry", cast.carry_luts() * lanes)
        if dropped > 0 and out.rounding == "nearest_even" and half:
            self.add("cast_tie", -(-dropped // 3) * lanes)
        if into_skid:
            equal = (out.width - cast.bits) * lanes
            self.add("skid", -equal)
            self.registers(-2 * equal)

    def ram(
        self,
        depth: int,
        width: int,
        *,
        name: str = "ram",
        is_late: bool = False,
        is_block: bool | None = None,
    ) -> None:
        """A memory that is written and read; `is_late`: its address is a register, not its word.

        `is_block`: whether its RTL asks for block RAM; None: the mapper weighs it.
        """
        if depth < 2:
            self.registers(depth * width)
            return
        banks = -(-depth // self.fabric.ram_words)
        luts = banks * -(-width // self.fabric.ram_width) * self.fabric.ram_luts
        in_luts = luts + MUX_COST * (banks - 1) * width + AROUND_COST * (not is_late)
        if is_block is None:
            is_block = in_luts > BLOCK_COST * blocks_of(depth, width)
        if is_block:
            self.add("bram", blocks_of(depth, width))
            self.path("block", 1.0)
            if is_late:
                self.add(f"{name}_round", width)
                self.registers(width + 1)
            return
        self.path("banks", banks)
        self.add(f"{name}_luts", luts + (banks - 1) * (width + 2))
        if not is_late:
            self.registers(width)

    def rom(
        self, words: Sequence[int], width: int, copies: int = 1, mapped: int = MAPPED_BITS
    ) -> float:
        """A table with a register behind it; `copies` read it, each at a place of its own.

        `mapped`: bits of the largest one that is covered with LUTs. Returns the share of its bits
        that are neither constant nor equal to others.
        """
        depth = len(words)
        if depth < 2:
            return 0.0
        varied = varied_columns(words, width)
        bits = len(varied) or width  # words that are all alike stand for words nobody packed
        if is_block_rom(depth, bits, copies):
            shape = block_shape(depth, bits, copies)
            self.add("bram", shape.blocks)
            self.add("rom_blocks")
            self.add("rom_banks", (shape.banks - 1) * bits * copies)
            self.path("block", 1.0)
            return 1.0
        self.path("table", max(bits_for(depth) - self.fabric.lut_inputs, 0))
        columns = np.unique(varied, axis=0)
        if columns.size <= mapped:
            luts, resets = mapped_luts(columns, self.fabric.lut_inputs, self.fabric.widest)
            self.add("table", luts * copies)
            self.add("table_resets", resets * copies)
        else:
            leaves, wide, muxes = table_luts(columns, self.fabric.lut_inputs, self.fabric.widest)
            self.add("rom_leaves", leaves * copies)
            self.add("rom_wide", wide * copies)
            self.add("rom_muxes", muxes * copies)
        self.registers(len(columns) * copies)
        return len(columns) / width


def _pieces(width: int, most: int) -> int:
    return 1 if width <= most else -(-(width - 1) // (most - 1))


def blocks_of(depth: int, width: int) -> int:
    """Block RAMs of a memory."""
    return min(-(-width // w) * -(-depth // d) for w, d in BLOCK_DEPTHS.items())


@dataclass(frozen=True)
class BlockShape:
    """How a table lies in block RAMs."""

    blocks: int
    banks: int
    """Parts of the table that lie side by side; a choice between them follows."""


def block_shape(depth: int, width: int, copies: int = 1) -> BlockShape:
    """The cheapest shape of a table that is read at so many places, as the mapper weighs it.

    Two places share a block whose words are not the widest.

    >>> block_shape(1056, 10), block_shape(1488, 8)
    (BlockShape(blocks=1, banks=3), BlockShape(blocks=1, banks=1))
    """
    found = []
    for word, words in BLOCK_DEPTHS.items():
        banks = -(-depth // words)
        readers = [copies] if word == max(BLOCK_DEPTHS) else [copies, -(-copies // 2)]
        blocks = min(readers) * -(-banks * width // word)
        cost = BLOCK_COST * blocks + MUX_COST * (banks - 1) * width * copies
        found.append((cost, banks, blocks))
    _, banks, blocks = min(found)
    return BlockShape(blocks, banks)


def is_block_rom(depth: int, width: int, copies: int = 1) -> bool:
    """Whether a table becomes block RAM."""
    blocks = block_shape(depth, width, copies).blocks
    return depth * width * ROM_BIT_COST > BLOCK_COST * blocks


def varied_columns(words: Sequence[int], width: int) -> Bits:
    """The columns of a table that are not constant, as rows of bits."""
    size = -(-width // 8)
    packed = b"".join(word.to_bytes(size, "little") for word in words)
    rows = np.frombuffer(packed, np.uint8).reshape(len(words), size)
    columns: Bits = np.unpackbits(rows, axis=1, bitorder="little")[:, :width].T
    is_varied = columns.min(axis=1) != columns.max(axis=1)
    varied: Bits = columns[is_varied]
    return varied


def table_luts(columns: Bits, inputs: int, widest: int) -> tuple[int, int, int]:
    """What tables of one bit take: LUTs of `inputs` inputs, and multiplexers above them.

    Those of up to `widest` inputs, which are no LUTs, and the others. What is equal is there once.

    >>> table_luts(varied_columns([0, 1, 1, 0], 1), 4, 7)
    (1, 0, 0)
    """
    if not columns.size:
        return 0, 0, 0
    places = max(bits_for(columns.shape[1]), inputs)
    padded = np.zeros((len(columns), 1 << places), np.uint8)
    padded[:, : columns.shape[1]] = columns
    functions, names = np.unique(padded.reshape(-1, 1 << inputs), axis=0, return_inverse=True)
    leaves = int((functions.min(axis=1) != functions.max(axis=1)).sum())
    level, wide, muxes = names.reshape(len(columns), -1), 0, 0
    for place in range(inputs + 1, places + 1):
        pairs = level.reshape(-1, 2)
        is_choice = pairs[:, 0] != pairs[:, 1]
        choices = len(np.unique(pairs[is_choice], axis=0))
        wide, muxes = (wide + choices, muxes) if place <= widest else (wide, muxes + choices)
        named = np.unique(pairs, axis=0, return_inverse=True)[1] + level.max() + 1
        level = np.where(is_choice, named.reshape(-1), pairs[:, 0]).reshape(len(columns), -1)
    return leaves, wide, muxes
