"""Choice of an engine for the memory's bandwidth and for the cells of a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.hw.decode.decode_area import EngineArea, engine_area
from chop.hw.decode.decode_emit import EngineOptions, design_engine
from chop.hw.decode.decode_model import DecodeModel
from chop.hw.decode.memory_image import DATA_WIDTHS, MOST_BEATS, lay_out, width_problem
from chop.hw.decode.memory_timing import BANDWIDTH_ONE, memory_timing

BURST, QUEUE = 16, 512
"""Beats of a burst, and beats that are read ahead."""


@dataclass(frozen=True)
class SizedEngine:
    """Engine of a certain width of memory: its cells, and the bounds of its rate."""

    options: EngineOptions
    area: EngineArea
    beats: int
    """Beats that a token reads, without those of the cache."""
    bandwidth: float
    """Beats that the memory moves in a cycle, at most 1."""
    mhz: float

    @property
    def bound(self) -> float:
        """Upper bound of the tokens per second (roofline), with an empty cache."""
        return self.mhz * 1e6 * self.bandwidth / self.beats

    @property
    def limit(self) -> str:
        """Side of the roofline that bounds the rate."""
        return "memory" if self.bandwidth < 1 else "engine"

    def shortage(self, available: Mapping[str, int]) -> str:
        """Return the first kind of cell of which `available` has too few; empty if it fits."""
        cells = self.area.cells()
        return next((kind for kind, count in cells.items() if count > available[kind]), "")


def size_engine(model: DecodeModel, data_width: int, memory: str, mhz: float) -> SizedEngine:
    """Return the engine of a model for beats of `data_width` bits."""
    options = EngineOptions(data_width, burst=BURST, queue=QUEUE)
    design = design_engine(model, options, is_filled=False)
    bandwidth = memory_timing(memory, data_width, mhz).bandwidth / BANDWIDTH_ONE
    beats = sum(instruction.beats for instruction in design.program)
    return SizedEngine(options, engine_area(design), beats, bandwidth, mhz)


def engines_of(model: DecodeModel, memory: str, mhz: float) -> list[SizedEngine]:
    """Return the engines of a model for all widths of memory that its blocks allow."""
    return [size_engine(model, width, memory, mhz) for width in DATA_WIDTHS if _suits(model, width)]


def _suits(model: DecodeModel, data_width: int) -> bool:
    """Return whether beats suit the blocks, and instructions can address all of them."""
    if width_problem(model, data_width):
        return False
    return lay_out(model, data_width, is_filled=False).beats <= MOST_BEATS


def fastest_engine(engines: list[SizedEngine], available: Mapping[str, int]) -> SizedEngine | None:
    """Return the fastest engine that fits, the smallest of equally fast ones; None if none fits."""
    fitting = [engine for engine in engines if not engine.shortage(available)]
    return max(fitting, key=lambda e: (e.bound, -e.options.data_width), default=None)
