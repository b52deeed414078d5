"""The prediction of a design: its stages' and what lies between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.errors import HardwareError
from chop.hw.component import Component
from chop.hw.design import Design
from chop.hw.route.parts import PARTS, get_part
from chop.registry import suggest

FAMILIES = ("ecp5", "xc7")
"""Device families that there are models of."""
KINDS = ("lut", "ff", "dsp", "bram")


@dataclass(frozen=True)
class StagePrediction:
    """What one stage is predicted to take, and the clock that it alone would reach."""

    name: str
    kind: str
    lut: int
    ff: int
    dsp: int
    bram: int
    mhz: float


@dataclass(frozen=True)
class Prediction:
    """What a design is predicted to take of a device family."""

    family: str
    lut: int
    ff: int
    dsp: int
    bram: int
    mhz: float
    stages: tuple[StagePrediction, ...] = ()

    def __str__(self) -> str:
        return (
            f"predicted: {self.lut} LUT, {self.ff} FF, {self.dsp} DSP, {self.bram} BRAM, "
            f"{self.mhz:.0f} MHz ({self.family})"
        )

    def takes(self) -> dict[str, int]:
        """Resources by kind, as `Part.has` tells what there is."""
        return {"lut": self.lut, "ff": self.ff, "dsp": self.dsp, "bram": self.bram}

    def fits(self, has: Mapping[str, int]) -> bool:
        """Whether a part that has so much is large enough."""
        return all(count <= has[kind] for kind, count in self.takes().items() if kind in has)


def predict(design: Design, family: str = "ecp5") -> Prediction:
    """What `design` will take on a device family, or on the family of a part.

    >>> from chop.hw.components import Relu
    >>> from chop.hw.design import Builder
    >>> from chop.hw.golden import Fixed
    >>> from chop.hw.stream import Stream
    >>> builder = Builder("top")
    >>> x = builder.input("data_in_0", Stream((4,), 2, Fixed(8, 4)))
    >>> builder.output("data_out_0", builder.add("relu", Relu(builder.stream(x), Fixed(8, 4)), x))
    >>> str(predict(builder.build(), "ecp5-25k")).split(":")[0]
    'predicted'
    """
    known = family_of(family)
    rows = tuple(_stage(stage.name, stage.component, known) for stage in design.stages)
    totals = {kind: sum(getattr(row, kind) for row in rows) for kind in KINDS}
    mhz = min((row.mhz for row in rows), default=200.0)
    return Prediction(known, **totals, mhz=mhz, stages=rows)


def family_of(name: str) -> str:
    """The device family called `name`, or that of the part called so."""
    if name in FAMILIES:
        return name
    if name in PARTS:
        family = get_part(name).family.name
        return family if family in FAMILIES else "ecp5"
    raise HardwareError(f"predict: unknown family or part '{name}'. {suggest(name, FAMILIES)}")


def _stage(name: str, component: Component, family: str) -> StagePrediction:
    """A crude rule, from what the component itself counts."""
    cost = component.cost()
    bits = [memory.bits for memory in component.memories()]
    bram = sum(-(-each // 16384) for each in bits if each > 4096)
    lut = 20 + cost.register_bits + sum(each // 32 for each in bits if each <= 4096)
    return StagePrediction(
        name, component.kind, lut, cost.register_bits + 10, cost.multipliers, bram, 110.0
    )
