"""The prediction of a design: its stages' and what lies between them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.hw.component import Component
from chop.hw.design import Design
from chop.hw.predict.count import inventory_of
from chop.hw.route.parts import PARTS, get_part
from chop.registry import suggest

KINDS = ("lut", "ff", "dsp", "bram")
COEFFICIENTS = Path(__file__).parent / "coefficients.json"
"""Written by bench/area_models.py."""
ANY = "*"
"""Stands for the kinds that have no coefficients of their own."""


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

    LUTs are those of logic, carry chains and LUT memories together. The clock is that of ECP5.

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
    return whole_of(
        known, [predict_stage(stage.name, stage.component, known) for stage in design.stages]
    )


def whole_of(family: str, rows: Sequence[StagePrediction]) -> Prediction:
    """What a design of these stages will take."""
    whole = coefficients()[family]["whole"]
    totals = {
        kind: round(whole.get(kind, 1.0) * sum(getattr(row, kind) for row in rows))
        for kind in KINDS
    }
    mhz = min((row.mhz for row in rows), default=FASTEST)
    mhz = round(mhz * whole.get("mhz", 1.0), 1)
    return Prediction(family, **totals, mhz=mhz, stages=tuple(rows))


FASTEST = 250.0
"""MHz of nothing."""


def family_of(name: str) -> str:
    """The device family called `name`, or that of the part called so."""
    known = [*coefficients()]
    if name in known:
        return name
    family = get_part(name).family.name if name in PARTS else name
    if family not in known:
        raise HardwareError(
            f"predict: no models of '{name}'. {suggest(name, [*known, *PARTS])} Families with "
            f"models: {', '.join(known)}."
        )
    return family


@functools.cache
def coefficients() -> dict[str, Any]:
    """Of all models: by family, what is predicted, and the component's kind."""
    found: dict[str, Any] = json.loads(COEFFICIENTS.read_text())
    return found


def predict_stage(name: str, component: Component, family: str) -> StagePrediction:
    """One component alone."""
    inventory = inventory_of(component, family)
    models, amounts = coefficients()[family], inventory.amounts
    nanoseconds = weigh(models["ns"], component.kind, inventory.longest)
    return StagePrediction(
        name,
        component.kind,
        round(weigh(models["lut"], component.kind, amounts)),
        round(weigh(models["ff"], component.kind, amounts)),
        round(amounts.get("dsp", 0.0)),
        round(amounts.get("bram", 0.0)),
        round(1000 / max(nanoseconds, 1000 / FASTEST), 1),
    )


def weigh(
    model: Mapping[str, Mapping[str, float]], kind: str, amounts: Mapping[str, float]
) -> float:
    """Amounts, each times the coefficient that it has for a kind of component."""
    weights, common = model.get(kind, {}), model[ANY]
    return sum(
        weights.get(name, common.get(name, 0.0)) * amount for name, amount in amounts.items()
    )
