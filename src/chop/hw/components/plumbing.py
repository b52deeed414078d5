"""Components that move beats and leave numbers alone, and the cast between formats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from chop.errors import ConfigError
from chop.hw import golden, twin
from chop.hw.component import (
    Component,
    Cost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.golden import Fixed, Ints
from chop.hw.stream import Stream, pack_words


@dataclass(frozen=True)
class Mover(Component):
    """Same tensor out as in."""

    stream: Stream

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        object.__setattr__(self, "outputs", (self.stream,))

    def golden(self, *data: Ints) -> Ints:
        return data[0]


@register
@dataclass(frozen=True)
class Skid(Mover):
    """Two-entry register slice."""

    module = "skid_buffer"

    def parameters(self) -> Mapping[str, Parameter]:
        return {"DATA_WIDTH": self.stream.beat_width}

    def twins(self) -> list[twin.Twin]:
        return [twin.Queue(2)]

    def cost(self) -> Cost:
        return Cost(register_bits=2 * self.stream.beat_width)


@register
@dataclass(frozen=True)
class Fifo(Mover):
    """Queue of `depth` beats."""

    depth: int = 4
    module = "fifo"

    def parameters(self) -> Mapping[str, Parameter]:
        return {"DATA_WIDTH": self.stream.beat_width, "DEPTH": self.depth}

    def twins(self) -> list[twin.Twin]:
        return [twin.Queue(self.depth)]

    def cost(self) -> Cost:
        return Cost(memory_bits=self.depth * self.stream.beat_width)


@register
@dataclass(frozen=True)
class Fork(Mover):
    """The same beats to `branches` consumers."""

    branches: int = 2
    module = "stream_fork"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        object.__setattr__(self, "outputs", (self.stream,) * self.branches)

    def parameters(self) -> Mapping[str, Parameter]:
        return {"DATA_WIDTH": self.stream.beat_width, "BRANCHES": self.branches}

    def twins(self) -> list[twin.Twin]:
        return [twin.Fork(self.branches)]

    def cost(self) -> Cost:
        return Cost(register_bits=2 * self.branches * self.stream.beat_width)


@register
@dataclass(frozen=True)
class Gearbox(Mover):
    """The same elements, `lanes` per beat."""

    lanes: int = 1
    module = "gearbox"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        object.__setattr__(self, "outputs", (replace(self.stream, lanes=self.lanes),))

    @property
    def unit(self) -> int:
        """Elements that always move together."""
        return math.gcd(self.stream.lanes, self.lanes)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.stream.format.width,
            "DATA_IN_0_PARALLELISM_DIM_0": self.stream.lanes,
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "UNIT": self.unit,
        }

    def twins(self) -> list[twin.Twin]:
        return [twin.Gearbox(self.stream.lanes // self.unit, self.lanes // self.unit)]

    def cost(self) -> Cost:
        return Cost(register_bits=self.stream.format.width * (self.stream.lanes + self.lanes))


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

    def twins(self) -> list[twin.Twin]:
        return [twin.Reorder(self.source.beats)]

    def cost(self) -> Cost:
        bits = 2 * self.source.elements * self.source.format.width
        return super().cost() + Cost(memory_bits=bits)


@register
@dataclass(frozen=True)
class Cast(Component):
    """The same numbers in another format: rounded and brought into its range."""

    source: Stream
    format: Fixed
    module = "stream_cast"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, format=self.format),))

    def golden(self, *data: Ints) -> Ints:
        return golden.cast(data[0], self.source.format.frac_width, self.format)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **precision("DATA_IN_0", self.source.format),
            **result_precision(self.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def twins(self) -> list[twin.Twin]:
        return []
