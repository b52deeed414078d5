"""Cast from MXINT to fixed point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.arith.mxint_wire import Mxint, on_wire
from chop.hw.design.component import Component, ComponentCost, Parameter, register, result_precision
from chop.hw.design.cycle_model import Bracket, Twin
from chop.hw.design.samples import BYTE, COUNT, KINDS, WIDE
from chop.hw.design.stream import Stream
from chop.nn.quantizers.mxint import MXInt


def block_precision(prefix: str, number: Fixed) -> dict[str, Parameter]:
    """Return the parameters of the format of an MXINT port."""
    assert isinstance(number, Mxint), f"{prefix} is in {number}"
    return {
        f"{prefix}_PRECISION_0": number.mantissa,
        f"{prefix}_PRECISION_1": number.frac_width,
        f"{prefix}_EXPONENT_WIDTH": number.shared_width,
    }


@register
@dataclass(frozen=True)
class FromMxint(Component):
    """Numbers of an MXINT stream in fixed point, rounded and saturated."""

    source: Stream
    format: Fixed
    module = "mxint_to_fixed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, format=self.format),))

    @property
    def number(self) -> Mxint:
        """Format of the input."""
        wire = self.source.format
        assert isinstance(wire, Mxint), wire
        return wire

    def golden(self, *data: Ints) -> Ints:
        return golden.cast(data[0], self.number.frac_width, self.format)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **block_precision("DATA_IN_0", self.number),
            "DATA_IN_0_TOP": self.number.top,
            **result_precision(self.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def twins(self) -> list[Twin]:
        return [Bracket(1)]

    def cost(self) -> ComponentCost:
        shifted = self.source.lanes * self.number.width
        return ComponentCost(register_bits=shifted + 2 * self.outputs[0].beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        wide = Fixed(20, 9)
        pairs = [
            (MXInt(8, block_size=4), wide, WIDE, 2),
            (MXInt(8, block_size=3), wide, Fixed(20, 9), 1),
            (MXInt(4, block_size=2), BYTE, COUNT, 2),
            (MXInt(2, exponent_width=1, block_size=-1), wide, BYTE, 4),
            *((MXInt(6, block_size=4), wide, kind, 1) for kind in KINDS),
        ]
        return [
            cls(Stream((2, 8), lanes, on_wire(number, source, 8)), out)
            for number, source, out, lanes in pairs
        ]


def exact_format(number: Mxint) -> Fixed:
    """Return the fixed-point format that holds all numbers of an MXINT stream."""
    return Fixed(number.width, number.frac_width, narrow=True)
