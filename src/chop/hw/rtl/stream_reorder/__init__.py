"""A tensor in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chop.errors import ConfigError
from chop.hw.component import Component, Cost, Memory, Parameter, register
from chop.hw.golden import Ints
from chop.hw.process import Phase, Process
from chop.hw.samples import NARROW, stream
from chop.hw.stream import Stream, pack_words
from chop.hw.twin import Twin


class ReorderTwin(Twin):
    """Two banks, one filled while the other is emptied."""

    name = "Reorder"

    def __init__(self, beats: int) -> None:
        self.arguments = (beats,)
        self.beats = beats

    def process(self) -> Process:
        whole = {0: self.beats}
        phases = (
            Phase(self.beats - 1, needs=whole, gives=(0,)),
            Phase(needs=whole, frees=whole, gives=(0,)),
        )
        return Process(phases, slots=(2 * self.beats,), depth=0)


@register
@dataclass(frozen=True)
class Reorder(Component):
    """The elements of each tensor in another order: output element i is input element order[i]."""

    source: Stream
    order: tuple[int, ...]
    shape: tuple[int, ...]
    module = "stream_reorder"

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(self.source.elements)):
            raise ConfigError(
                f"Reorder: order must name each of {self.source.elements} elements once."
            )
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, shape=self.shape),))

    def golden(self, *data: Ints) -> Ints:
        flat = data[0].reshape(len(data[0]), -1)
        return flat[:, np.asarray(self.order)].reshape(-1, *self.shape)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.elements,
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def memories(self) -> tuple[Memory, ...]:
        index_width = max(1, (self.source.elements - 1).bit_length())
        indices = np.asarray(self.order, dtype=np.int64).reshape(-1, self.source.lanes)
        words = tuple(pack_words(indices, index_width))
        return (Memory("order", words, index_width * self.source.lanes, is_streamed=False),)

    def twins(self) -> list[Twin]:
        return [ReorderTwin(self.source.beats)]

    def cost(self) -> Cost:
        bits = 2 * self.source.elements * self.source.format.width
        return super().cost() + Cost(memory_bits=bits)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        turned = tuple(np.arange(12).reshape(2, 6).T.ravel().tolist())
        return [
            cls(stream(2, 6, lanes=2), turned, (6, 2)),
            cls(stream(5, number=NARROW), (4, 2, 0, 1, 3), (5,)),
            cls(stream(8, lanes=8), (7, 6, 5, 4, 3, 2, 1, 0), (8,)),
        ]
