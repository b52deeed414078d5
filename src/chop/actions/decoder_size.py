"""Decode engine that fits a part: the width of its memory port, or a refusal with what fits."""

from __future__ import annotations

from chop.errors import HardwareError
from chop.hw.decode.decode_model import DecodeModel
from chop.hw.decode.decode_size import SizedEngine, engines_of, fastest_engine, size_engine
from chop.hw.decode.memory_image import check_width
from chop.hw.flow.route.parts import PARTS, Part

MEMORY_WIDTH = 128
"""Bits of a beat of memory if neither a width nor a part is given."""


def choose_engine(
    model: DecodeModel, memory: str, mhz: float, *, width: int | None, part: Part | None
) -> SizedEngine:
    """Return the engine of `width`; without it, the fastest one that fits `part`.

    Raise if the part has too few cells.
    """
    if part is None:
        return size_engine(model, width or MEMORY_WIDTH, memory, mhz)
    engines = engines_of(model, memory, mhz)
    if width is None:
        fitting, least = engines, engines[0]
    else:
        check_width(model, width)
        fitting = [sized for sized in engines if sized.options.data_width == width]
        least = fitting[0]
    chosen = fastest_engine(fitting, part.has())
    if chosen is None:
        raise HardwareError(refusal(engines, least, part))
    return chosen


def refusal(engines: list[SizedEngine], engine: SizedEngine, part: Part) -> str:
    """Return the message about an engine that a part does not hold, with what fits."""
    kind = engine.shortage(part.has())
    width = engine.options.data_width
    narrower = fastest_engine(engines, part.has())
    advice = [] if narrower is None else [f"--memory-width {narrower.options.data_width}"]
    larger = [p for p in PARTS.values() if not engine.shortage(p.has())]
    if larger:
        advice.append(f"--part {min(larger, key=lambda p: p.lut).name}")
    return (
        f"part: an engine with beats of {width} bits needs {engine.area.cells()[kind]} "
        f"{kind.upper()} (estimate), {part.name} has {part.has()[kind]}. "
        + (f"It fits with {' or '.join(advice)}." if advice else "No part holds it.")
    )
