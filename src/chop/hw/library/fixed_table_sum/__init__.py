"""Matrix-vector products with constant weights as sums of tables: no multiplier, few adders.

The bits of all inputs of a row are taken in groups; a table says what the bits of a group add up to
with their weights. A table of six bits is one LUT for each bit of its results, and one of five bits
fits the LUT before a carry chain: adding it costs no more than any addition. So what counts is how
many bits a row reads, not how many digits its weights have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed
from chop.hw.design.component import Component, ComponentCost, Parameter, register
from chop.hw.design.cycle_model import Bracket, Twin
from chop.hw.design.samples import BIT, COUNT, DOWN, NARROW, WIDE
from chop.hw.library.constant_product import MOST_BITS, ConstantProduct, fields
from chop.hw.library.fixed_linear import PRODUCTS

FIRST_BITS, ADDED_BITS = 6, 5
"""Input bits of the first table of a row, and of one that is added: a LUT also takes the sum."""
MOST_INPUT_BITS, MOST_ROWS, MOST_COLUMNS, MOST_LATE = 1 << 16, 1 << 16, 1 << 24, 31
"""Largest values of the fields of a table."""

Term = tuple[int, int]
"""Input bit, counted through the beat, and its term."""


@dataclass(frozen=True)
class Table:
    """Table of `start` plus the terms of its bits, added to the tables before it in its row.

    The sum so far has `width` bits, below `low` the table adds nothing.
    """

    row: int
    terms: tuple[Term, ...]
    start: int
    low: int
    width: int
    is_last: bool

    def columns(self) -> list[int]:
        """Return each bit of the table at each address of six bits.

        >>> Table(0, ((0, 1),), 0, 0, 2, True).columns()[0] == int("10" * 32, 2)
        True
        """
        sums = [self.start]
        for _, coefficient in self.terms:
            sums += [each + coefficient for each in sums]
        sums *= (1 << FIRST_BITS) // len(sums)
        return [
            sum((each >> place & 1) << address for address, each in enumerate(sums))
            for place in range(self.low, self.width)
        ]


def tables_of(row: int, terms: Sequence[Term], start: int) -> list[Table]:
    """Return the tables of a row that is `start` plus the sum of `terms`.

    Sums on the way are counted from the least that they may be, so that they need no sign; the
    difference is in the last table. What is a multiple of a high power of two comes last: below it
    nothing is added.
    """
    ordered = sorted(terms, key=lambda term: (_twos(term[1]), abs(term[1])))
    ends = [FIRST_BITS, *range(FIRST_BITS + ADDED_BITS, len(ordered) + ADDED_BITS, ADDED_BITS)]
    groups = [ordered[: ends[0]], *(ordered[e - ADDED_BITS : e] for e in ends[1:])]
    lows = [0, *(min(_twos(c) for _, c in group) for group in groups[1:])]
    least = [sum(min(c, 0) for _, c in group) for group in groups]
    reach = [sum(abs(c) for _, c in group) for group in groups]
    rest = start + sum(least)  # what is added besides the tables counted from their least
    below = rest % (1 << lows[-1])
    starts = [-each for each in least]
    starts[0] += below if len(groups) > 1 else 0
    starts[-1] += rest - below if len(groups) > 1 else rest
    widths = [(sum(reach[: k + 1]) + below).bit_length() for k in range(len(groups))]
    widths[-1] = _signed_width(rest, rest + sum(reach))
    parts = zip(groups, starts, lows, widths, strict=True)
    return [
        Table(row, tuple(group), first, low, max(width, low + 1), k == len(groups) - 1)
        for k, (group, first, low, width) in enumerate(parts)
    ]


def _twos(number: int) -> int:
    """Return the number of times that 2 divides a number."""
    return (number & -number).bit_length() - 1


def _signed_width(low: int, high: int) -> int:
    return max((-low - 1).bit_length() if low < 0 else 0, high.bit_length() if high > 0 else 0) + 1


@register
@dataclass(frozen=True, eq=False)
class TableSum(ConstantProduct):
    """Product weight @ x + bias by tables of groups of input bits."""

    module = "fixed_table_sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        bits = self.source.shape[-1] * self.source.format.width
        is_large = self.acc_width > MOST_BITS or self.column_count > MOST_COLUMNS
        if is_large or bits > MOST_INPUT_BITS or len(self.rows) > MOST_ROWS:
            raise ConfigError(
                f"fixed_table_sum: {bits} input bits, {len(self.rows)} results of {self.acc_width} "
                f"bits and tables of {self.column_count} columns. Allowed: {MOST_INPUT_BITS}, "
                f"{MOST_ROWS}, {MOST_BITS} and {MOST_COLUMNS}."
            )
        if self.stages > MOST_LATE:
            raise ConfigError(
                f"fixed_table_sum: {self.stages} stages of {self.adders_per_stage} additions. "
                f"Allowed: {MOST_LATE}. A larger adders_per_stage gives fewer."
            )

    @cached_property
    def rows(self) -> list[list[Table]]:
        """Tables of each output."""
        number, rows = self.source.format, []
        for row, (weights, start) in enumerate(
            zip(self.weights.weight, self.starts(), strict=True)
        ):
            terms = [
                (k * number.width + place, int(w) * bit << self.extra)
                for k, w in enumerate(weights)
                if w
                for place, bit in enumerate(_bits(number))
            ]
            rows.append(tables_of(row, terms, start))
        return rows

    @cached_property
    def tables(self) -> list[Table]:
        """Tables of all outputs."""
        return [table for row in self.rows for table in row]

    @property
    def additions(self) -> int:
        """Tables of the longest row."""
        return max(len(row) for row in self.rows) - 1

    @property
    def stages(self) -> int:
        """Cycles until the last addition."""
        return max(self.additions - 1, 0) // self.adders_per_stage

    def late(self, level: int, is_first: bool) -> int:
        """Return the cycles from the inputs to the addition of that level."""
        return min((level if is_first else level - 1) // self.adders_per_stage, self.stages)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            **self.result_parameters(),
            "STAGES": self.stages,
            "TABLES": len(self.tables),
            "COLUMNS": self.column_count,
            "NETWORK": self.table_words(),
            "CONTENTS": tuple(c for table in self.tables for c in table.columns()),
        }

    @property
    def column_count(self) -> int:
        """Bits of all tables."""
        return sum(table.width - table.low for table in self.tables)

    def table_words(self) -> tuple[int, ...]:
        """Return the tables as words of a parameter; all rows end in the same cycle."""
        words: list[int] = []
        column = 0
        for row in self.rows:
            for k, table in enumerate(row):
                level = self.additions - len(row) + 1 + k
                words += self._words(table, level, k == 0, column)
                column += table.width - table.low
        return tuple(words)

    def _words(self, table: Table, level: int, is_first: bool, column: int) -> list[int]:
        is_register = not is_first and not table.is_last and level % self.adders_per_stage == 0
        head = fields(
            *((table.width, 7), (table.low, 6), (len(table.terms), 3), (is_first, 1)),
            *((is_register, 1), (self.late(level, is_first), 5), (table.row, 16)),
            *((table.is_last, 1), (column, 24)),
        )
        numbers = fields(*((bit, 16) for bit, _ in table.terms))
        return [head, numbers % (1 << 64), numbers >> 64]

    def twins(self) -> list[Twin]:
        return [Bracket(self.stages + 1)]

    def cost(self) -> ComponentCost:
        outputs, bits = self.outputs[0].elements, self.inputs[0].beat_width
        sums = sum(
            table.width
            for row in self.rows
            for k, table in enumerate(row)
            if 0 < k < len(row) - 1
            and (self.additions - len(row) + 1 + k) % self.adders_per_stage == 0
        )
        results = outputs * (self.acc_width + 2 * self.format.width)
        return ComponentCost(register_bits=sums + self.stages * bits + results)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls.sample(3, 2, b=Fixed(12, 11)),
            cls.sample(6, 2, step=1, x=NARROW, w=NARROW, b=NARROW),
            cls.sample(3, 2, x=COUNT, w=COUNT, b=COUNT, y=DOWN),
            cls.sample(2, 1, step=8, x=WIDE, w=WIDE, b=None, y=Fixed(6, 1)),
            cls.sample(1, 2, x=BIT, w=BIT, b=BIT, y=Fixed(5, 0, overflow="wrap")),
            cls.sample(12, 3, step=1, x=BIT, y=Fixed(3, 1, is_signed=False, rounding="floor")),
        ]


def _bits(number: Fixed) -> list[int]:
    """Return the value of each bit of a code."""
    places = [1 << place for place in range(number.width)]
    return [*places[:-1], -places[-1]] if number.is_signed else places


PRODUCTS.register("tables", TableSum.make)
