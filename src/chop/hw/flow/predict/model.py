"""Prediction of a design: the sum of its stages, times one factor fitted on whole designs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.hw.area.area_model import inventory_of
from chop.hw.area.inventory import PACKED
from chop.hw.design.component import Component
from chop.hw.design.design import Design
from chop.hw.flow.predict.bands import QUANTITIES, design_kind, error_band
from chop.hw.flow.route.parts import PARTS, get_part
from chop.registry import suggest

KINDS = ("lut", "ff", "dsp", "bram")
COEFFICIENTS = Path(__file__).parent / "coefficients.json"
"""Coefficients of the fits, written by bench/area_models.py."""
ANY = "*"
"""Key of the coefficients that all kinds of components share."""
FASTEST = 250.0
"""Highest clock that is predicted, MHz."""


@dataclass(frozen=True)
class StagePrediction:
    """Predicted cells of one stage, and the clock that it would reach alone."""

    name: str
    kind: str
    lut: int
    ff: int
    dsp: int
    bram: int
    mhz: float
    ff_packed: int = 0
    """Flip-flops among `ff` that routing moves into the multipliers."""


@dataclass(frozen=True)
class Prediction:
    """Predicted cells and clock of a design on a device family.

    `lut` and `ff` are the cells after synthesis; `ff_placed` are the flip-flops after routing.
    """

    family: str
    lut: int
    ff: int
    dsp: int
    bram: int
    mhz: float
    stages: tuple[StagePrediction, ...] = ()
    ff_packed: int = 0
    """Flip-flops among `ff` that routing moves into the multipliers."""
    kind: str = ""
    """Kind of design in `bands.json`."""

    def __str__(self) -> str:
        error = error_band(self.family, self.kind)
        return (
            f"predicted: {self.lut} LUT{error['lut']}, {self.ff_placed} FF{error['ff']}, "
            f"{self.dsp} DSP, {self.bram} BRAM, {self.mhz:.0f} MHz{error['mhz']} ({self.family}"
            f"{error['of']})"
        )

    @property
    def errors(self) -> str:
        """Errors of designs of this kind: "LUT [+18 … +28 %], FF … routed against predicted"."""
        error = error_band(self.family, self.kind)
        listed = ", ".join(f"{n.upper()}{error[n]}" for n in QUANTITIES if error[n])
        return f"{listed}{error['of']}".removeprefix("; ")

    @property
    def ff_placed(self) -> int:
        """Flip-flops of the routed design, without those inside multipliers."""
        return self.ff - self.ff_packed

    def takes(self) -> dict[str, int]:
        """Return the resources by kind, with the keys of `Part.has`."""
        return {"lut": self.lut, "ff": self.ff_placed, "dsp": self.dsp, "bram": self.bram}

    def fits(self, has: Mapping[str, int]) -> bool:
        """Return True if a part with the resources `has` is large enough."""
        return all(count <= has[kind] for kind, count in self.takes().items() if kind in has)


def predict(design: Design, family: str = "ecp5") -> Prediction:
    """Predict the cells and the clock of `design` on a device family, or on that of a part.

    LUTs include carry chains and LUT RAM. The clock is that of ECP5.

    >>> from chop.hw.library.components import Relu
    >>> from chop.hw.streams.builder import Builder
    >>> from chop.hw.arith.golden import Fixed
    >>> from chop.hw.design.stream import Stream
    >>> builder = Builder("top")
    >>> x = builder.input("data_in_0", Stream((4,), 2, Fixed(8, 4)))
    >>> builder.output("data_out_0", builder.add("relu", Relu(builder.stream(x), Fixed(8, 4)), x))
    >>> str(predict(builder.build(), "ecp5-25k")).split(":")[0]
    'predicted'
    """
    name = family_of(family)
    return whole_of(name, [predict_stage(s.name, s.component, name) for s in design.stages])


def whole_of(family: str, rows: Sequence[StagePrediction]) -> Prediction:
    """Return the prediction of a design of these stages."""
    whole = coefficients()[family]["whole"]
    totals = {
        kind: round(whole.get(kind, 1.0) * sum(getattr(row, kind) for row in rows))
        for kind in KINDS
    }
    mhz = min((row.mhz for row in rows), default=FASTEST)
    mhz = round(mhz * whole.get("mhz", 1.0), 1)
    packed = min(sum(row.ff_packed for row in rows), totals["ff"])
    kind = design_kind([row.kind for row in rows])
    return Prediction(family, **totals, mhz=mhz, stages=tuple(rows), ff_packed=packed, kind=kind)


def family_of(name: str) -> str:
    """Return the device family `name`, or that of the part `name`."""
    families = [*coefficients()]
    if name in families:
        return name
    family = get_part(name).family.name if name in PARTS else name
    if family not in families:
        raise HardwareError(
            f"predict: no models of '{name}'. {suggest(name, [*families, *PARTS])} Families with "
            f"models: {', '.join(families)}."
        )
    return family


@functools.cache
def coefficients() -> dict[str, Any]:
    """Return all coefficients by family, quantity and kind of component."""
    by_family: dict[str, Any] = json.loads(COEFFICIENTS.read_text())
    return by_family


def predict_stage(name: str, component: Component, family: str) -> StagePrediction:
    """Predict one component alone."""
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
        round(amounts.get(PACKED, 0.0)) if family == "ecp5" else 0,
    )


def weigh(
    model: Mapping[str, Mapping[str, float]], kind: str, amounts: Mapping[str, float]
) -> float:
    """Return the sum of `amounts`, each times its coefficient for a kind of component."""
    weights, common = model.get(kind, {}), model[ANY]
    return sum(
        weights.get(name, common.get(name, 0.0)) * amount for name, amount in amounts.items()
    )
