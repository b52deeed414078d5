"""Comparison of a design with its part: products per second against bytes streamed."""

from __future__ import annotations

from dataclasses import dataclass

from chop.hw.design.component import Component
from chop.hw.design.design import Design
from chop.hw.flow.route.parts import Part
from chop.hw.timing.cycles import interval


@dataclass(frozen=True)
class Roofline:
    """The roofs over a design at a clock, and the design below them.

    Products are multiply-accumulates; bytes are those that enter and leave by the ports.
    """

    part: str
    mhz: float
    products: int
    """Products per tensor."""
    bytes: float
    """Bytes per tensor."""
    interval: float
    """Cycles between tensors."""
    part_multipliers: int
    design_multipliers: int
    bytes_per_cycle: float
    """The most that the ports carry."""

    @property
    def reached(self) -> float:
        """Products per second."""
        return self.products / self.interval * self.mhz * 1e6

    @property
    def intensity(self) -> float:
        """Products for each byte streamed."""
        return self.products / self.bytes

    @property
    def part_roof(self) -> float:
        """Products per second of every multiplier of the part."""
        return self.part_multipliers * self.mhz * 1e6

    @property
    def design_roof(self) -> float:
        """Products per second of the design's own multipliers."""
        return self.design_multipliers * self.mhz * 1e6

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the ports."""
        return self.bytes_per_cycle * self.mhz * 1e6

    def records(self) -> dict[str, float | str]:
        """Return plain data."""
        names = ("reached", "intensity", "part_roof", "design_roof", "bandwidth")
        return {
            "part": self.part,
            "mhz": self.mhz,
            "products": self.products,
            "bytes": self.bytes,
            **{name: getattr(self, name) for name in names},
        }

    def __str__(self) -> str:
        text = f"{self.reached / 1e9:.3g} G products per second, {self.intensity:.3g} per byte"
        if not self.design_multipliers:
            return f"{text}; without multipliers, of which {self.part} has {self.part_multipliers}"
        of_part, own = self.reached / self.part_roof, self.reached / self.design_roof
        of_ports = self.reached / (self.bandwidth * self.intensity)
        return (
            f"{text}: {own:.0%} of its {self.design_multipliers} multipliers, "
            f"{of_part:.1%} of the {self.part_multipliers} of {self.part}, "
            f"{of_ports:.0%} of what its ports could feed"
        )


def roofline(design: Design, part: Part, mhz: float) -> Roofline | None:
    """Return the roofs over `design` on `part` at a clock; None without products."""
    streams = [*design.inputs.values(), *design.output_streams().values()]
    times = {stage.name: design.passes if stage in design.looped else 1 for stage in design.stages}
    products = sum(products_of(s.component) * times[s.name] for s in design.stages)
    if not products or not part.dsp:
        return None
    return Roofline(
        part.name,
        mhz,
        products,
        sum(stream.beats * stream.beat_width for stream in streams) / 8,
        interval(design),
        part.dsp,
        design.cost().multipliers,
        sum(stream.beat_width for stream in streams) / 8,
    )


def products_of(component: Component) -> int:
    """Return the products of a tensor, also if additions form them."""
    weights = getattr(component, "weights", None)
    if component.products() or weights is None:
        return component.products()
    return component.inputs[0].elements * component.outputs[0].shape[-1]
