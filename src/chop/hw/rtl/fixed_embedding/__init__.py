"""Rows of a table by their number: the vectors of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.component import Component, Cost, Memory, Parameter, register
from chop.hw.exact import Exact
from chop.hw.exact_ops import Arguments, exact_op, refuse_setting
from chop.hw.golden import Fixed, Ints
from chop.hw.lower import Lowerer, Value, formats, lowers
from chop.hw.lower.engine import row_major
from chop.hw.lower.rows import codes_of, constant
from chop.hw.process import Phase, Process
from chop.hw.samples import BYTE, NARROW, WIDE, codes, stream
from chop.hw.stream import Stream, pack_words
from chop.hw.twin import Twin

WIDEST = 24
"""Bits of the number of a row."""


class EmbeddingTwin(Twin):
    """A number is held while the `beats` of its row are read."""

    name = "Embedding"

    def __init__(self, beats: int) -> None:
        self.arguments = (beats,)
        self.beats = beats

    def process(self) -> Process:
        one = {0: 1}
        first = Phase(self.beats - 1, needs=one, gives=(0,))
        return Process((first, Phase(needs=one, frees=one, gives=(0,))), slots=(2,), latency=1)


@register
@dataclass(frozen=True, eq=False)
class Embedding(Component):
    """Row `data_in_0` of `table`, which is (rows, features); beyond the last row, the last."""

    source: Stream
    table: Ints
    format: Fixed
    lanes: int = 1
    """Of the output."""
    module = "fixed_embedding"

    def __post_init__(self) -> None:
        rows, features = self.table.shape
        number = self.source.format
        if self.source.lanes != 1 or number != index_format(rows) or features % self.lanes:
            raise ConfigError(
                f"fixed_embedding: numbers of rows come one in a beat as {index_format(rows)}, and "
                f"lanes divide {features}; got {self.source} and {self.lanes}."
            )
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream((*self.source.shape, features), self.lanes, self.format)
        object.__setattr__(self, "outputs", (out,))

    def golden(self, *data: Ints) -> Ints:
        found: Ints = self.table[np.minimum(data[0], len(self.table) - 1)]
        return found

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "DATA_OUT_0_PRECISION_0": self.format.width,
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.table.shape[1],
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "ROWS": len(self.table),
        }

    def memories(self) -> tuple[Memory, ...]:
        words = tuple(pack_words(self.table.reshape(-1, self.lanes), self.format.width))
        return (Memory("table", words, self.output.beat_width, is_streamed=False),)

    def twins(self) -> list[Twin]:
        return [EmbeddingTwin(self.table.shape[1] // self.lanes)]

    def cost(self) -> Cost:
        bits = self.table.size * self.format.width
        registers = 2 * self.source.format.width + 3 * self.output.beat_width
        return Cost(memory_bits=bits, register_bits=registers)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            _sample(10, 4, 2),
            _sample(16, 3, 3, NARROW),
            _sample(5, 6, 1),
            _sample(2, 4, 2, WIDE),
        ]


def index_format(rows: int) -> Fixed:
    """Of the numbers of so many rows."""
    return Fixed(max((rows - 1).bit_length(), 1), 0, is_signed=False)


def _sample(rows: int, features: int, lanes: int, number: Fixed = BYTE) -> Embedding:
    source = stream(6, number=index_format(rows))
    return Embedding(source, codes(number, rows, features), number, lanes)


# -- from a node -----------------------------------------------------------------------------------


def _table(low: Lowerer, node: fx.Node) -> Any:
    weight = constant(low, node, "weight")
    if weight is None or (len(weight) - 1).bit_length() > WIDEST:
        raise low.refuse(node, "no table, or one too long", f"Allowed: up to 2**{WIDEST} rows")
    if low.setting(node, "max_norm", None) is not None:
        raise low.refuse(node, "max_norm", "Allowed: rows as they are")
    return weight


def taken_format(low: Lowerer, node: fx.Node) -> Fixed:
    """The numbers of the rows of the table."""
    return index_format(len(_table(low, node)))


@lowers("fixed_embedding", takes=taken_format)
def lower_embedding(low: Lowerer, node: fx.Node) -> Value:
    """A row for each token."""
    weight = _table(low, node)
    rows, features = weight.shape
    number = formats.parameter_format(node, "weight")
    value = low.operand(node)
    value = low.arrange(node, value, row_major(value.shape), value.shape)
    _, lanes = low.parallelism.of(node.name, 1, features)
    source = Stream(value.shape, 1, index_format(rows))
    table = codes_of(weight, number).reshape(rows, features)
    shape = (*value.shape, features)
    wire = low.add(node, Embedding(source, table, number, lanes), value)
    return Value(wire, shape, row_major(shape))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("embedding", "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse")
def exact_embedding(a: Arguments) -> Exact:
    """weight[input]."""
    if a.get("max_norm") is not None:
        raise refuse_setting("max_norm", a["max_norm"], "rows as they are")
    ids, weight = a["input"], a["weight"]
    places = ids.codes if isinstance(ids, Exact) else ids.numpy()
    found: Exact = weight.take(weight.codes[places.astype(np.int64)])
    return found
