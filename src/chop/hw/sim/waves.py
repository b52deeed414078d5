"""A picture of the first handshakes at the ports of a simulated design."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import MissingDependencyError
from chop.hw.design.design import Interface
from chop.hw.sim.simulate import Verdict

SHOWN_CYCLES = 60


@dataclass(frozen=True)
class HandshakeTrace:
    """Valid and ready of one port, cycle by cycle."""

    port: str
    valid: list[bool]
    ready: list[bool]

    @property
    def beats(self) -> list[int]:
        """Cycles in which a beat was taken."""
        return [k for k, (v, r) in enumerate(zip(self.valid, self.ready, strict=True)) if v and r]


def traces(
    verdict: Verdict, interface: Interface, cycles: int = SHOWN_CYCLES
) -> list[HandshakeTrace]:
    """Return the handshakes of every port, from the start."""
    bits = verdict.handshakes[:cycles]
    return [
        HandshakeTrace(port, [bool(b & 1) for b in bits[:, k]], [bool(b & 2) for b in bits[:, k]])
        for k, port in enumerate((*interface.inputs, *interface.outputs))
    ]


def draw_handshakes(verdict: Verdict, interface: Interface, path: Path) -> Path:
    """Write the picture as PNG, and its data as JSON next to it."""
    ports = traces(verdict, interface)
    data = {t.port: {"valid": t.valid, "ready": t.ready} for t in ports}
    path.with_suffix(".json").write_text(json.dumps(data) + "\n")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "'matplotlib' is not installed. Install it: `pip install matplotlib`."
        ) from error
    figure = Figure(figsize=(11, 1 + 0.55 * 2 * len(ports)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw(axes, ports)
    figure.savefig(path, dpi=120)
    return path


def _draw(axes: Any, ports: list[HandshakeTrace]) -> None:
    labels = []
    for row, (name, levels) in enumerate(
        (f"{t.port}_{kind}", getattr(t, kind)) for t in ports for kind in ("valid", "ready")
    ):
        heights = [-row + 0.7 * level for level in levels]
        axes.step(range(len(heights)), heights, where="post", linewidth=1.2)
        labels.append((-row + 0.35, name))
    for number, trace in enumerate(ports):
        for cycle in trace.beats:
            low = -2 * number - 1
            axes.fill_between(
                [cycle, cycle + 1], low, low + 1.7, alpha=0.15, color="green", linewidth=0
            )
    first = ports[-1].beats[:1]
    axes.set_yticks([y for y, _ in labels], [name for _, name in labels])
    axes.set_xlabel("cycle after reset")
    came = f"first output beat in cycle {first[0]}" if first else "no output beat yet"
    axes.set_title(f"First handshakes: {came} (green: a beat is taken)")
