"""Slices: some consecutive beats of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chop.errors import ConfigError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component, ComponentCost, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Process, take
from chop.hw.design.samples import NARROW, stream
from chop.hw.design.stream import Stream


class SliceTwin(Twin):
    """Cycle model: beats that are dropped, passed, and dropped."""

    name = "Slice"

    def __init__(self, beats: int, first: int, passed: int) -> None:
        self.arguments = (beats, first, passed)
        self.beats, self.first, self.passed = beats, first, passed

    def process(self) -> Process:
        behind = self.beats - self.first - self.passed
        return Process((take(self.first, gives=()), take(self.passed), take(behind, gives=())))


@register
@dataclass(frozen=True)
class Slice(Component):
    """Elements of each row from `first` on, as many as fill `shape`."""

    source: Stream
    first: int
    shape: tuple[int, ...]
    module = "stream_slice"
    has_sums = False

    def __post_init__(self) -> None:
        out = replace(self.source, shape=self.shape)
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (out,))
        lanes, row = self.source.lanes, self.source.shape[-1]
        if self.first % lanes or self.kept % lanes or self.kept * self.rows != out.elements:
            raise ConfigError(
                f"stream_slice: first and size must be whole beats of {lanes} elements, got "
                f"{self.first} and {out.elements} of {self.rows} rows."
            )
        if self.first < 0 or self.first + self.kept > row:
            raise ConfigError(
                f"stream_slice: elements {self.first} to {self.first + self.kept - 1} of {row}: "
                f"there are no such."
            )

    @property
    def rows(self) -> int:
        """Rows of a tensor."""
        return self.source.elements // self.source.shape[-1]

    @property
    def kept(self) -> int:
        """Elements of a row that pass."""
        return self.output.elements // self.rows

    def golden(self, *data: Ints) -> Ints:
        rows = data[0].reshape(len(data[0]), self.rows, -1)
        return rows[:, :, self.first : self.first + self.kept].reshape(-1, *self.shape)

    def _beats(self) -> tuple[int, int, int]:
        lanes = self.source.lanes
        return self.source.shape[-1] // lanes, self.first // lanes, self.kept // lanes

    def parameters(self) -> Mapping[str, Parameter]:
        names = ("BEATS", "FIRST", "KEPT")
        return {
            "DATA_WIDTH": self.source.beat_width,
            **dict(zip(names, self._beats(), strict=True)),
        }

    def twins(self) -> list[Twin]:
        return [SliceTwin(*self._beats())]

    def cost(self) -> ComponentCost:
        return ComponentCost(register_bits=2 * self.source.beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(24, lanes=2), 0, (6,)),
            cls(stream(1, 24, lanes=3), 6, (2, 6)),
            cls(stream(3, 6, lanes=2), 2, (3, 2)),
            cls(stream(5, number=NARROW), 4, (1,)),
            cls(stream(4, lanes=2), 0, (4,)),
        ]
