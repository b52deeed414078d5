"""Softmax of rows, in integers; the definition is in `chop.nn.quantizers.arithmetic.softmax`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chop.errors import ConfigError
from chop.hw import golden
from chop.hw.component import Component, Cost, Memory, Parameter, register, result_precision
from chop.hw.golden import Fixed, Ints
from chop.hw.rtl.row_buffer import RowsTwin, row_cost
from chop.hw.samples import BIT, BYTE, COUNT, WIDE, stream
from chop.hw.stream import Stream
from chop.hw.twin import Twin
from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic.softmax import LONGEST_ROW, exponential_tables
from chop.nn.quantizers.arithmetic.tables import RECIPROCAL_FRAC, reciprocal_table

KEEP = Fixed(1, 0, is_signed=False)
"""Of a mask: 1 where an element takes part."""
WIDEST = 16
MAX_WAIT, R_WAIT = 3, 7
"""Cycles from the last beat of a row to its maximum, and to the reciprocal of its sum."""
EXP_WIDTH, R_WIDTH = 16, 18


@register
@dataclass(frozen=True)
class Softmax(Component):
    """Softmax over the last dimension; with a mask, elements where it is 0 take no part."""

    source: Stream
    format: Fixed
    has_mask: bool = False
    module = "fixed_softmax"

    def __post_init__(self) -> None:
        if self.source.format.width > WIDEST or self.source.shape[-1] > LONGEST_ROW:
            raise ConfigError(
                f"fixed_softmax: an operand has up to {WIDEST} bits and rows of up to "
                f"{LONGEST_ROW}, got {self.source.format} and {self.source.shape[-1]}."
            )
        mask = (replace(self.source, format=KEEP),) if self.has_mask else ()
        object.__setattr__(self, "inputs", (self.source, *mask))
        object.__setattr__(self, "outputs", (replace(self.source, format=self.format),))

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """Of the exponential: one, or two for the high and the low bits of a difference."""
        number = self.source.format
        return exponential_tables(Integer(number.width, number.frac_width))

    @property
    def beats(self) -> int:
        """Beats of a row."""
        return self.source.shape[-1] // self.source.lanes

    def golden(self, *data: Ints) -> Ints:
        keep = data[1].astype(bool) if self.has_mask else np.ones(data[0].shape, dtype=bool)
        largest = np.where(keep, data[0], -(1 << WIDEST)).max(axis=-1, keepdims=True)
        e = np.where(keep, self._exponentials(np.maximum(largest - data[0], 0)), 0)
        return golden.cast(e * _reciprocals(e.sum(axis=-1, keepdims=True)), 33, self.format)

    def _exponentials(self, far: Ints) -> Ints:
        tables = [np.array(table, dtype=np.int64) for table in self.tables]
        if len(tables) == 1:
            return np.asarray(tables[0][np.minimum(far, 255)])
        return np.asarray((tables[0][far >> 8] * tables[1][far & 255] + (1 << 15)) >> 16)

    def parameters(self) -> Mapping[str, Parameter]:
        number = self.source.format
        return {
            "DATA_IN_0_PRECISION_0": number.width,
            "DATA_IN_0_IS_SIGNED": number.is_signed,
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            "HAS_MASK": self.has_mask,
            "HAS_TWO_TABLES": len(self.tables) == 2,
            **result_precision(self.format),
        }

    def memories(self) -> tuple[Memory, ...]:
        names = zip(("exp", "fine"), (16, 17), self.tables, strict=False)
        tables = [_table(name, words, width) for name, width, words in names]
        return (*tables, _table("reciprocal", reciprocal_table(), 16))

    def twins(self) -> list[Twin]:
        exp_latency = 2 + len(self.tables)
        first, second = (self.beats, MAX_WAIT, exp_latency), (self.beats, R_WAIT, 2)
        return [RowsTwin(first, second, len(self.inputs))]

    def cost(self) -> Cost:
        lanes, width = self.source.lanes, self.source.format.width
        buffers = row_cost(self.beats, MAX_WAIT, lanes * (width + 1), width)
        buffers += row_cost(self.beats, R_WAIT, lanes * EXP_WIDTH, R_WIDTH)
        registers = lanes * (width + 6 * EXP_WIDTH + R_WIDTH + 2 * self.format.width)
        multipliers = lanes * len(self.tables) + 2  # two of the reciprocal
        return super().cost() + buffers + Cost(multipliers, register_bits=registers)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        part = Fixed(8, 7, is_signed=False)
        return [
            cls(stream(3, 8, lanes=2), part),
            cls(stream(2, 6, lanes=6), Fixed(8, 7), has_mask=True),
            cls(stream(5), Fixed(10, 9)),
            cls(stream(3, 4, lanes=2, number=WIDE), Fixed(16, 15, is_signed=False), has_mask=True),
            cls(stream(2, 9, lanes=3, number=COUNT), Fixed(6, 5, rounding="floor")),
            cls(stream(2, 3, number=Fixed(16, 9)), part),
            cls(stream(2, 4, lanes=4, number=BIT), part, has_mask=True),
            cls(stream(3, 1, number=BYTE), part, has_mask=True),
        ]


def _table(name: str, words: tuple[int, ...], width: int) -> Memory:
    return Memory(name, words, width, is_streamed=False, parameter=f"{name.upper()}_INIT_FILE")


def _reciprocals(total: Ints) -> Ints:
    """2**33 / total by table and one Newton step; 0 for 0."""
    entries = np.array(reciprocal_table(), dtype=np.int64)
    place = np.array([max(int(t).bit_length() - 1, 0) for t in total.reshape(-1)])
    place = place.reshape(total.shape)
    mantissa = (total << 16) >> place
    r = entries[(mantissa >> 8) & 255]
    correction = ((1 << RECIPROCAL_FRAC) - mantissa * r) >> 15
    return np.where(total > 0, (r * correction) >> place, 0)
