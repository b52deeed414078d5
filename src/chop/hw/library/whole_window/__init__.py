"""Windows of an image, one per beat, for layers that take a window in each cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from chop.errors import ConfigError
from chop.hw.design.component import Component, ComponentCost, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import stream
from chop.hw.library.sliding_window import Geometry, SlidingWindow, WindowTwin


def due_steps(g: Geometry) -> Iterator[int]:
    """Return the step of each window's last pixel, counted through the rows.

    A pixel to the right of the image counts as the next row's: it is masked.
    """
    for row in range(g.out_size[1]):
        for column in range(g.out_size[0]):
            bottom = row * g.stride[1] - g.padding[1] + g.kernel[1] - 1
            right = column * g.stride[0] - g.padding[0] + g.kernel[0] - 1
            yield bottom * g.size[0] + right


class WholeWindowTwin(WindowTwin):
    """Cycle model: a pixel per step, then steps without; windows at those that are due."""

    name = "Whole window"

    def process(self) -> Process:
        return _process(self.geometry)


@lru_cache(maxsize=64)
def _process(g: Geometry) -> Process:
    pixels, due = g.size[0] * g.size[1], set(due_steps(g))
    phases = [
        Phase(takes=(0,) if step < pixels else (), gives=(0,) if step in due else ())
        for step in range(max(pixels, max(due) + 1))
    ]
    return Process(phases, latency=1)


@register
@dataclass(frozen=True)
class WholeWindow(SlidingWindow):
    """Windows of kernel rows x kernel columns x channels: pixels in, windows out."""

    module = "whole_window"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.outputs[0].shape[-1]
        object.__setattr__(self, "outputs", (replace(self.outputs[0], lanes=size),))
        g = self.geometry
        if g.beats != 1:
            raise ConfigError(
                f"whole_window: a pixel of {self.source.shape[-1]} channels is one beat, the "
                f"stream has {self.source.lanes} lanes."
            )
        if 2 * g.padding[0] >= g.kernel[0] + (g.stride[1] - 1) * g.size[0]:
            raise ConfigError(
                f"whole_window: padding of {g.padding[0]} columns with a kernel of {g.kernel[0]}. "
                f"Allowed: less than half of the kernel."
            )

    @cached_property
    def steps(self) -> int:
        """Cycles of an image."""
        pixels = self.geometry.size[0] * self.geometry.size[1]
        return max(pixels, max(due_steps(self.geometry)) + 1)

    def twins(self) -> list[Twin]:
        return [WholeWindowTwin(self.geometry)]

    def cycles(self) -> int:
        return self.steps

    def parameters(self) -> Mapping[str, Parameter]:
        parameters = dict(super().parameters())
        del parameters["DATA_IN_0_TENSOR_SIZE_DIM_0"]  # of beats
        return parameters

    def cost(self) -> ComponentCost:
        g, width = self.geometry, self.source.beat_width
        line = (g.kernel[1] - 1) * g.size[0] + g.kernel[0]
        return ComponentCost(register_bits=line * width + 2 * self.outputs[0].beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(5, 4, 1, lanes=1), (3, 3), padding=(1, 1)),
            cls(stream(6, 5, 2, lanes=2), (2, 3), (2, 1), (0, 1)),
            cls(stream(7, 7, 2, lanes=2), (1, 1), (3, 3)),
            cls(stream(4, 4, 1, lanes=1), (4, 2), (1, 2)),
            cls(stream(7, 1, lanes=1), (3, 1), padding=(1, 0)),
        ]
