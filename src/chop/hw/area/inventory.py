"""Parts lists: bits of adders, multiplexers, memories and registers of one component.

Counts follow the RTL's declarations and Yosys' own rules for multipliers and memories. The fitted
coefficients of `chop.hw.flow.predict` turn each amount into LUTs, flip-flops and nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chop.hw.area.casts import CHAINLESS as CHAINLESS
from chop.hw.area.casts import MappedCast
from chop.hw.area.lut_cover import Bits, mapped_luts
from chop.hw.arith.golden import Fixed
from chop.hw.design.component import Memory

PACKED = "ff_packed"
"""Amount of flip-flops that routing moves into the registers of multipliers."""
BLOCK_DEPTHS = {36: 512, 18: 1024, 9: 2048, 4: 4096, 2: 8192, 1: 16384}
"""Words of an 18 kbit block RAM by their width: the shapes of ECP5 (DP16KD) and xc7 (RAMB18)."""
BLOCK_COST, ROM_BIT_COST, MUX_COST, AROUND_COST = 128, 1 / 16, 1 / 2, 8
"""Costs of Yosys' `memory_libmap`, in LUTs: a block (`cost` in brams_16kd.txt), a bit of a table in
LUTs (`-logic-cost-rom`), a bit of a multiplexer between banks (FACTOR_MUX), a registered read of
LUT RAM (FACTOR_EMU). Yosys picks the cheaper memory by them, so block RAMs are counted exactly."""
MAPPED_BITS, MAPPED_WEIGHT_BITS = 8192, 512
"""Largest table, and largest table of weights, in bits, whose LUT cover is computed
(`lut_cover.py`). A larger one is counted leaf by leaf: weights share little, and the cover of a
large table takes seconds."""
BESIDE_PRODUCT = 20
"""Bits of the carry chain that is as slow as a multiplier: a cast beside one is mapped for area."""


@dataclass(frozen=True)
class Fabric:
    """Primitives of a device family."""

    lut_inputs: int
    ram_words: int
    """Words of a LUT RAM."""
    ram_width: int
    """Bits of a word of a LUT RAM."""
    ram_luts: int
    """LUTs of a LUT RAM."""
    multiplier: tuple[int, int]
    """Widest signed operands of a DSP, bits."""
    least_product: int
    """Sum of the operand widths, bits, from which Yosys uses a DSP (`mul2dsp`)."""
    widest: int
    """Inputs of the widest function that multiplexers behind LUTs make."""

    def wide_lut(self, inputs: int) -> int:
        """Return the LUTs of one function of `inputs` inputs; 0 if it is wider than `widest`.

        >>> [FABRICS["ecp5"].wide_lut(n) for n in (3, 4, 5, 7, 8)]
        [1, 1, 2, 8, 0]
        """
        return 0 if inputs > self.widest else 1 << max(inputs - self.lut_inputs, 0)


FABRICS: Mapping[str, Fabric] = {
    "ecp5": Fabric(4, 16, 4, 4, (18, 18), 0, 7),
    "xc7": Fabric(6, 32, 6, 4, (25, 18), 9, 8),
}
"""TRELLIS_DPR16X4, MULT18X18D and PFUMX/L6MUX21; RAM32M, DSP48E1 and MUXF7/MUXF8."""


def bits_for(count: int) -> int:
    """Return the bits that number `count` things, at least one."""
    return max((count - 1).bit_length(), 1)


def trailing_zeros(number: int) -> int:
    """Return the number of zero bits below the lowest one of a number that is not zero.

    >>> [trailing_zeros(n) for n in (1, 12, -8)]
    [0, 2, 3]
    """
    return (number & -number).bit_length() - 1


class Inventory:
    """Amounts by name, for one device family."""

    def __init__(self, family: str) -> None:
        self.fabric = FABRICS[family]
        self.amounts: dict[str, float] = {}
        self.longest: dict[str, float] = {}
        """Largest amount of each kind on a path between two registers."""

    def path(self, name: str, amount: float) -> None:
        """Add `amount` of `name` to the longest path."""
        self.longest[name] = max(self.longest.get(name, 0.0), amount)

    def add(self, name: str, amount: float = 1.0) -> None:
        """Add `amount` of the resource `name`."""
        if amount:
            self.amounts[name] = self.amounts.get(name, 0.0) + amount

    def registers(self, bits: int, *, by_multiplier: bool = False) -> None:
        """Add flip-flops; those beside a multiplier may become part of it."""
        self.add("ff_dsp" if by_multiplier else "ff", bits)

    def packed(self, bits: float) -> None:
        """Add operand registers that routing moves into multipliers, if there are multipliers."""
        self.add(PACKED, bits if self.amounts.get("dsp") else 0)

    def skid(self, width: int, count: int = 1) -> None:
        """Add skid buffers: two words and two valid bits each."""
        self.add("skid", width * count)
        self.add("skids", count)
        self.registers((2 * width + 2) * count)

    def counter(self, size: int, *, extra: int = 0) -> int:
        """Add a counter from 0 to `size` - 1, wide enough for `size` + `extra`; return its bits."""
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
        """Add carry chains of `bits` bits, two LUTs per cell; short additions have none."""
        if bits > CHAINLESS:
            self.add("counted", 2 * -(-bits // 2) * count)

    def constant_sum(self, bits: int, constant: int) -> None:
        """Add a sum with a constant; the bits below its lowest one need no adder."""
        if constant:
            self.chain(bits - trailing_zeros(constant))

    def carry(self, bits: int, count: int = 1) -> None:
        """Add adders, whose carry chains take LUTs in pairs."""
        self.add("carry", 2 * -(-bits // 2) * count)

    def multiplier(self, a: int, b: int, count: int = 1) -> None:
        """Add products of signed numbers of `a` and `b` bits."""
        if min(a, b) < 2 or a + b < self.fabric.least_product:
            self.add("soft_product", a * b * count)
            return
        large, small = self.fabric.multiplier
        blocks = _pieces(max(a, b), large) * _pieces(min(a, b), small)
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
        """Add `fixed_cast` of numbers of `width` bits, `frac` of them fractional.

        `half`: half a step was added before. `beside`: bits of the longest other carry chain.
        `is_loose`: logic before the cast merges with it, so its coefficient is fitted separately.
        """
        x = width + (not is_signed)
        dropped = min(frac - out.frac_width, x + 1)
        cast = MappedCast(x, dropped, out, not is_signed or is_positive, half)
        self.path("cast", max(cast.kept + cast.is_rounded, 1))
        name = "cast_half" if half else "cast_loose" if is_loose else "cast"
        self.add(name, cast.luts(beside, into_skid=into_skid) * lanes)
        self.add("carry", cast.carry_luts() * lanes)
        if dropped > 0 and out.rounding == "nearest_even" and half:
            # All dropped bits are zero: a LUT joins three of them with the result so far.
            self.add("cast_tie", -(-dropped // 3) * lanes)
        if into_skid:  # result bits that equal others need no register
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
        """Add a memory that is written and read.

        `is_late`: its address is registered instead of its word. `is_block`: the RTL asks for block
        RAM; None: the mapper chooses.
        """
        if depth < 2:
            self.registers(depth * width)
            return
        banks = -(-depth // self.fabric.ram_words)
        luts = banks * -(-width // self.fabric.ram_width) * self.fabric.ram_luts
        in_luts = luts + MUX_COST * (banks - 1) * width + AROUND_COST * (not is_late)
        blocks = min(-(-width // w) * -(-depth // d) for w, d in BLOCK_DEPTHS.items())
        if is_block is None:
            is_block = in_luts > BLOCK_COST * blocks
        if is_block:
            self.add("bram", blocks)
            self.path("block", 1.0)
            if is_late:
                self.add(f"{name}_round", width)
                self.registers(width + 1)
            return
        self.path("banks", banks)
        # A bank's word is chosen bit by bit; two LUTs decode its write enable.
        self.add(f"{name}_luts", luts + (banks - 1) * (width + 2))
        if not is_late:
            self.registers(width)

    def rom(
        self, words: Sequence[int], width: int, copies: int = 1, mapped: int = MAPPED_BITS
    ) -> float:
        """Add a table with a registered word that `copies` readers address independently.

        `mapped`: bits of the largest table whose LUT cover is computed. Return the share of its
        columns that are neither constant nor equal to others.
        """
        depth = len(words)
        if depth < 2:
            return 0.0
        varied = varied_columns(words, width)
        bits = len(varied) or width  # all words alike: a stand-in for words that nobody packed
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
            amounts = {"table": luts, "table_resets": resets}
        else:
            leaves, wide, muxes = table_luts(columns, self.fabric.lut_inputs, self.fabric.widest)
            amounts = {"rom_leaves": leaves, "rom_wide": wide, "rom_muxes": muxes}
        for name, amount in amounts.items():
            self.add(name, amount * copies)
        self.registers(len(columns) * copies)
        return len(columns) / width

    def source(self, memory: Memory) -> float:
        """Add a `rom_source`; return the share of the bits of its word that are registers."""
        depth = len(memory.words)
        self.add("sources")
        self.registers(1)
        self.counter(depth)
        if memory.banks > 1:
            self.counter(depth // memory.banks)
            self.counter(memory.repeats)
            self.add("bank_base", bits_for(depth))
            self.registers(bits_for(depth))
        return self.rom(memory.words, memory.width, mapped=MAPPED_WEIGHT_BITS)

    def sources(self, memories: Iterable[Memory]) -> None:
        """Add a `rom_source` for each streamed memory."""
        for memory in memories:
            if memory.is_streamed:
                self.source(memory)


def _pieces(width: int, most: int) -> int:
    """Return the DSP operands that a signed number is split into; all but one are unsigned."""
    return 1 if width <= most else -(-(width - 1) // (most - 1))


@dataclass(frozen=True)
class BlockShape:
    """Block RAMs of a table, and the banks that they are read as."""

    blocks: int
    banks: int
    """Parts of the table side by side, with a multiplexer behind them."""


def block_shape(depth: int, width: int, copies: int = 1) -> BlockShape:
    """Return the cheapest shape, by Yosys' costs, of a table with `copies` readers.

    Two readers share a block unless its words are the widest.

    >>> block_shape(1056, 10), block_shape(1488, 8)
    (BlockShape(blocks=1, banks=3), BlockShape(blocks=1, banks=1))
    """
    shapes = []
    for word, words in BLOCK_DEPTHS.items():
        banks = -(-depth // words)
        readers = copies if word == max(BLOCK_DEPTHS) else -(-copies // 2)
        blocks = readers * -(-banks * width // word)
        cost = BLOCK_COST * blocks + MUX_COST * (banks - 1) * width * copies
        shapes.append((cost, banks, blocks))
    _, banks, blocks = min(shapes)
    return BlockShape(blocks, banks)


def is_block_rom(depth: int, width: int, copies: int = 1) -> bool:
    """Return True if a table becomes block RAM."""
    blocks = block_shape(depth, width, copies).blocks
    return depth * width * ROM_BIT_COST > BLOCK_COST * blocks


def varied_columns(words: Sequence[int], width: int) -> Bits:
    """Return the columns of a table that are not constant, as rows of bits."""
    size = -(-width // 8)
    packed = b"".join(word.to_bytes(size, "little") for word in words)
    rows = np.frombuffer(packed, np.uint8).reshape(len(words), size)
    columns: Bits = np.unpackbits(rows, axis=1, bitorder="little")[:, :width].T
    varied: Bits = columns[columns.min(axis=1) != columns.max(axis=1)]
    return varied


def table_luts(columns: Bits, inputs: int, widest: int) -> tuple[int, int, int]:
    """Return the LUTs of one-bit tables, their multiplexers up to `widest` inputs, and the others.

    Multiplexers up to `widest` inputs are no LUTs. Equal parts are counted once.

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
