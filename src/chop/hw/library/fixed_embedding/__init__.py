"""Embedding: rows of a table by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import Component, ComponentCost, Memory, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BYTE, NARROW, codes, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.library.fixed_linear import check_lanes, parameters_of, weights_of
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import row_major
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op


class EmbeddingTwin(Twin):
    """Cycle model: a number stays for the beats of its row."""

    name = "Embedding"

    def __init__(self, beats: int) -> None:
        self.arguments = (beats,)
        self.beats = beats

    def process(self) -> Process:
        one = {0: 1}
        last = Phase(needs=one, frees=one, gives=(0,))
        return Process((Phase(self.beats - 1, needs=one, gives=(0,)), last), (2,), latency=1)


@register
@dataclass(frozen=True, eq=False)
class Embedding(Component):
    """Row n of `table` (rows, features) for each number n; past the last, the last."""

    source: Stream
    table: Ints
    format: Fixed
    lanes: int = 1
    """Format of the output."""
    module = "fixed_embedding"
    has_sums = False

    def __post_init__(self) -> None:
        number = self.source.format
        check_lanes("fixed_embedding", self.table.shape[1], self.lanes)
        is_count = not number.is_signed and number.frac_width == 0 and self.source.lanes == 1
        if not is_count or len(self.table) > 1 << number.width:
            raise ConfigError(
                f"fixed_embedding: numbers of {len(self.table)} rows must be unsigned and whole, "
                f"one per beat, got {self.source}."
            )
        out = Stream((*self.source.shape, self.table.shape[1]), self.lanes, self.format)
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (out,))

    def golden(self, *data: Ints) -> Ints:
        rows: Ints = self.table[np.minimum(data[0], len(self.table) - 1)]
        return rows.reshape(-1, *self.output.shape)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "ROWS": len(self.table),
            "DATA_OUT_0_PRECISION_0": self.format.width,
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.table.shape[1],
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
        }

    def memories(self) -> tuple[Memory, ...]:
        return self._memories

    @cached_property
    def _memories(self) -> tuple[Memory, ...]:
        words = tuple(pack_words(self.table.reshape(-1, self.lanes), self.format.width))
        return (Memory("table", words, self.output.beat_width, is_streamed=False),)

    def twins(self) -> list[Twin]:
        return [EmbeddingTwin(self.table.shape[1] // self.lanes)]

    def cost(self) -> ComponentCost:
        bits = self.table.size * self.format.width
        return ComponentCost(memory_bits=bits, register_bits=3 * self.output.beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        number = Fixed(3, 0, is_signed=False)
        return [
            cls(stream(4, number=number), codes(BYTE, 8, 4), BYTE, 2),
            cls(stream(3, 2, number=number), codes(NARROW, 5, 3), NARROW, 3),
            cls(stream(4, number=Fixed(1, 0, is_signed=False)), codes(BYTE, 2, 6), BYTE, 2),
        ]


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_embedding")
def lower_embedding(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the rows of the weight, in its format, then cast."""
    weight, _ = parameters_of(low, node)
    if low.setting(node, "max_norm", None) is not None:
        raise low.refuse(node, "max_norm", "Allowed: rows as they are")
    value = low.operand(node)
    value = low.arrange(node, value, row_major(value.shape), value.shape)
    weights = weights_of(node, weight, None)
    _, lanes = low.parallelism.of(node.name, 1, weight.shape[1])
    source = Stream((*value.shape[:-1], value.shape[-1]), 1, low.stream(value).format)
    component = Embedding(source, weights.weight, weights.weight_format, lanes)
    shape = (*value.shape, weight.shape[1])
    return Value(low.add(node, component, value), shape, row_major(shape))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("embedding", "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse")
def exact_embedding(a: Arguments) -> Exact:
    """Return rows of the weight."""
    numbers: Exact = a["input"]
    weight: Exact = a["weight"]
    return weight.take(weight.codes[numbers.codes >> numbers.frac_width])
