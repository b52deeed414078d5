"""Cast between two number formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import Component, Parameter, precision, register, result_precision
from chop.hw.design.cycle_model import Twin
from chop.hw.design.samples import BIT, BYTE, COUNT, KINDS, NARROW, WIDE, stream
from chop.hw.design.stream import Stream


@register
@dataclass(frozen=True)
class Cast(Component):
    """Numbers of a stream in another format, rounded and saturated."""

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

    def twins(self) -> list[Twin]:
        return []

    @classmethod
    def cases(cls) -> Sequence[Component]:
        pairs = (
            (WIDE, BYTE, 2),
            (BYTE, NARROW, 4),
            (NARROW, WIDE, 1),
            (WIDE, Fixed(5, 7), 1),
            (BYTE, Fixed(8, -2), 1),
            # more bits dropped than there are
            (NARROW, Fixed(3, -3), 1),
            (NARROW, Fixed(3, -2), 1),
            (NARROW, Fixed(3, -9, rounding="floor"), 1),
            (BYTE, Fixed(6, -20, rounding="nearest_away"), 1),
            (COUNT, Fixed(4, -4, is_signed=False), 1),
            (BIT, Fixed(4, 2), 1),
            (Fixed(62, 40), Fixed(8, 4), 1),
            (BYTE, Fixed(62, 50), 1),
            *((number, kind, 1) for number in (BYTE, COUNT, Fixed(9, 1)) for kind in KINDS),
        )
        return [cls(stream(64, lanes=n, number=a), b) for a, b, n in pairs]
