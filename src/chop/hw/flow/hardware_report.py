"""Report of a built design, and a diagram of its streams.

`stage_rows` and `summary` make the records; `report_text` and `diagram` draw them.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop import notebook
from chop.hw.design.design import Design, Stage, Wire
from chop.hw.flow.roofline import roofline
from chop.hw.flow.route.flow import Routed, records
from chop.hw.flow.route.parts import get_part
from chop.hw.flow.synth import Area
from chop.hw.sim.emit import write_files
from chop.hw.sim.simulate import Verdict
from chop.hw.streams.fifo import Fifo
from chop.hw.timing.cycles import NO_STALLS, Timing, interval, simulate_control, size_fifos
from graph.drawing import Box, Edge, to_svg

PREDICTED_CYCLES = 40_000
"""Cycles for which the cycle model predicts tensors, approximately."""
VERDICT = (
    "is_exact",
    "tensors",
    "compared",
    "mismatches",
    "first_mismatch",
    "handshake_violations",
    "surplus_beats",
    "cycles",
)
"""Facts of a verdict in the records."""
BOTTLENECK, LAYER, PLUMBING, PORT = "#ffd9b3", "#dbe9ff", "#eeeeee", "#ffffff"


@dataclass(frozen=True)
class StageRow:
    """One stage of the pipeline."""

    stage: str
    module: str
    shape: str
    format: str
    lanes_in: int
    lanes_out: int
    cycles: int
    utilisation: float
    multipliers: int
    memory_bits: int


@dataclass(frozen=True)
class Summary:
    """Pace of a design: predicted by the cycle model, and simulated."""

    tensors: int
    bound: int
    predicted_interval: float
    simulated_interval: float | None
    predicted_latency: int
    simulated_latency: int
    beats_compared: int
    beats_as_predicted: int
    bottleneck: str

    @property
    def is_predicted(self) -> bool:
        """True if every compared beat left in the predicted cycle."""
        return self.beats_compared == self.beats_as_predicted > 0


def stage_rows(design: Design) -> list[StageRow]:
    """Return one row per stage, in order; `utilisation` is its share of the cycles of a tensor."""
    cycles = interval(design)
    pace = cycles if math.isfinite(cycles) else float(design.cycles())
    return [_row(design, stage, pace) for stage in design.stages]


def _row(design: Design, stage: Stage, pace: float) -> StageRow:
    component, cycles = stage.component, design.stage_cycles(stage)
    source, out = component.inputs[0], component.outputs[0]
    cost = component.cost()
    return StageRow(
        stage.name,
        component.kind,
        f"{source.shape} -> {out.shape}",
        str(out.format),
        source.lanes,
        out.lanes,
        cycles,
        cycles / pace,
        cost.multipliers,
        cost.memory_bits,
    )


def bottleneck(design: Design) -> str:
    """Return the first stage with the most cycles."""
    return max(design.stages, key=design.stage_cycles).name


def summary(design: Design, verdict: Verdict) -> Summary:
    """Return predicted against simulated pace, at full rate."""
    tensors = min(verdict.tensors, max(4, PREDICTED_CYCLES // design.cycles()))
    tensors = -(-tensors // design.in_flight) * design.in_flight
    predicted = simulate_control(design, tensors, NO_STALLS)
    compared = matching = 0
    for name, times in predicted.outputs.items():
        simulated = list(verdict.timing.outputs[name])[: len(times)]
        compared += len(simulated)
        matching += sum(int(a) == int(b) for a, b in zip(times, simulated, strict=False))
    return Summary(
        verdict.tensors,
        design.cycles(),
        interval(design),
        _interval(design, verdict.timing),
        _latency(predicted),
        _latency(verdict.timing),
        compared,
        matching,
        bottleneck(design),
    )


def _latency(timing: Timing) -> int:
    return min(int(times[0]) for times in timing.outputs.values()) + 1


def _interval(design: Design, timing: Timing) -> float | None:
    """Return the mean cycles between tensors after the second."""
    ends = [timing.tensor_ends(n, s.beats) for n, s in design.output_streams().items()]
    first = 2 * design.in_flight - 1  # tensors that go together leave together
    if len(ends[0]) < first + 2:
        return None
    return max((e[-1] - e[first]) / (len(e) - 1 - first) for e in ends)


def report_text(
    design: Design, verdict: Verdict, area: Area | None = None, routed: Routed | None = None
) -> str:
    """Return the report, as Markdown."""
    facts = summary(design, verdict)
    above = facts.predicted_interval - facts.bound
    lines = [
        f"# Hardware report: {design.name}",
        "",
        f"Verdict: {verdict}.",
        f"Cycle model: {facts.beats_as_predicted} of {facts.beats_compared} output beats left in "
        f"the predicted cycle.",
        "",
        _pace_table(facts),
        "",
        f"Bottleneck: {facts.bottleneck}. {_explain_stalls(design, above)}",
        f"Area: {area}." if area else "Area: not synthesised.",
        "",
        _stage_table(stage_rows(design)),
        "",
        *([_routed_text(design, routed, facts)] if routed else []),
    ]
    return "\n".join(lines)


def tensors_per_second(mhz: float, interval: float) -> float:
    """Return the throughput of a design with a tensor every `interval` cycles."""
    return mhz * 1e6 / interval


def _routed_text(design: Design, routed: Routed, facts: Summary) -> str:
    roof = roofline(design, get_part(routed.part), routed.mhz)
    pace = facts.simulated_interval or facts.predicted_interval
    clocks = ", ".join(f"{mhz:.1f} (seed {seed})" for seed, mhz in routed.clocks.items())
    cells = [
        (kind.upper(), count, routed.available[kind], f"{count / routed.available[kind]:.1%}")
        for kind, count in routed.used.items()
        if routed.available[kind]
    ]
    path = [(s.stage, s.kind, f"{s.nanoseconds:.2f}", s.where) for s in routed.path]
    return "\n".join(
        [
            f"## On {routed.part} ({routed.device})",
            "",
            f"Routed clock: {routed.mhz:.1f} MHz; by seed: {clocks}. "
            f"{tensors_per_second(routed.mhz, pace):,.0f} tensors per second.",
            f"Bitstream: {routed.bitstream.name}, with the streams on serial pins.",
            f"Netlist simulated: {routed.simulated or 'no'}.",
            *([f"Roofline: {roof}."] if roof else []),
            "",
            tabulate(cells, ("", "used", "of", "share"), tablefmt="github"),
            "",
            "The slowest path:",
            "",
            tabulate(path, ("stage", "", "ns", "net or cell"), tablefmt="github"),
            "",
        ]
    )


def _pace_table(facts: Summary) -> str:
    rows = [
        ("cycles between tensors", facts.bound, facts.predicted_interval, facts.simulated_interval),
        ("cycles to the first output beat", "", facts.predicted_latency, facts.simulated_latency),
    ]
    headers = ("", "folding bound", "predicted", "simulated")
    return tabulate(rows, headers=headers, tablefmt="github")


def _stage_table(rows: list[StageRow]) -> str:
    short = {"lanes_in": "in", "lanes_out": "out", "utilisation": "busy"}
    short |= {"multipliers": "mult", "memory_bits": "mem bits"}
    headers = {each.name: short.get(each.name, each.name) for each in fields(StageRow)}
    cells = [{**asdict(row), "utilisation": f"{row.utilisation:.0%}"} for row in rows]
    return tabulate(cells, headers=headers, tablefmt="github")


def _explain_stalls(design: Design, above: float) -> str:
    """Return why the design is above its folding bound, and what would help."""
    if above <= 0:
        return "No stall above the folding bound."
    text = f"{above:g} cycles above the folding bound: a stage waits while another holds its beats."
    depths = size_fifos(design)
    if not depths:
        return f"{text} No FIFO removes that."
    listed = ", ".join(f"{d} beats behind {wire.stage}" for wire, d in depths.items())
    return f"{text} FIFOs of {listed} remove it."


def pipeline_records(
    design: Design,
    verdict: Verdict | None = None,
    area: Area | None = None,
    routed: Routed | None = None,
) -> dict[str, Any]:
    """Return the design as plain data: ports, stages, streams, pace and verdict.

    `stages` have a row each, with the `file` of its RTL and the `depth` of a FIFO; `streams` have
    source, target and width. `summary`, `verdict`, `area`, `routed` and `roofline` are None if
    nothing was simulated, synthesised or routed.
    """
    roofs = roofline(design, get_part(routed.part), routed.mhz) if routed else None
    return {
        "name": design.name,
        "inputs": {
            name: {"shape": stream.shape, "format": str(stream.format)}
            for name, stream in design.inputs.items()
        },
        "outputs": list(design.outputs),
        "stages": [
            {
                **asdict(row),
                **({"depth": s.component.depth} if isinstance(s.component, Fifo) else {}),
                "file": rtl_file(s),
            }
            for row, s in zip(stage_rows(design), design.stages, strict=True)
        ],
        "streams": _streams(design),
        "bottleneck": bottleneck(design),
        "interval": design.cycles(),
        "summary": asdict(summary(design, verdict)) if verdict else None,
        "verdict": {"text": str(verdict)} | {name: getattr(verdict, name) for name in VERDICT}
        if verdict
        else None,
        "area": asdict(area) if area else None,
        "routed": _routed(design, routed) if routed else None,
        "roofline": roofs.records() if roofs else None,
    }


def rtl_file(stage: Stage) -> str:
    """Return the file of a stage's module, relative to the hardware directory."""
    return f"rtl/{stage.component.module}.sv"


def _routed(design: Design, routed: Routed) -> dict[str, Any]:
    rate = tensors_per_second(routed.mhz, interval(design))
    return {**records(routed), "bitstream": routed.bitstream.name, "tensors_per_second": rate}


def _streams(design: Design) -> list[dict[str, Any]]:
    ends = [(wire, stage.name) for stage in design.stages for wire in stage.sources]
    ends += [(wire, name) for name, wire in design.outputs.items()]
    return [
        {
            "source": wire.stage,
            "target": target,
            "lanes": design.stream(wire).lanes,
            "width": design.stream(wire).format.lane_width,
            "beats": design.stream(wire).beats,
        }
        for wire, target in ends
    ]


def diagram(design: Design, mhz: float | None = None, *, is_linked: bool = False) -> str:
    """Return the pipeline as SVG: streams, cycles and use of stages, bottleneck, clock.

    `is_linked`: boxes link to the RTL of their stage, next to the picture.
    """
    slowest = bottleneck(design)
    boxes = [Box(name, (name, f"{s.shape} {s.format}"), PORT) for name, s in design.inputs.items()]
    for stage, row in zip(design.stages, stage_rows(design), strict=True):
        link = rtl_file(stage) if is_linked else ""
        boxes.append(_box(stage, row, link, is_slowest=stage.name == slowest))
    boxes += [Box(name, (name,), PORT) for name in design.outputs]
    edges = [
        Edge(wire.stage, stage.name, _label(design, wire))
        for stage in design.stages
        for wire in stage.sources
    ]
    edges += [Edge(wire.stage, name, _label(design, wire)) for name, wire in design.outputs.items()]
    clock = "" if mhz is None else f" at {mhz:.1f} MHz"
    title = f"{design.name}: one tensor every {design.cycles()} cycles{clock}, held by {slowest}"
    return to_svg(boxes, edges, title)


def _box(stage: Stage, row: StageRow, link: str, *, is_slowest: bool) -> Box:
    component = stage.component
    multipliers = component.cost().multipliers
    pace = f"{component.cycles()} cycles, {row.utilisation:.0%} busy"
    lines: tuple[str, ...] = (
        stage.name,
        component.kind,
        f"{component.inputs[0].shape} -> {component.outputs[0].shape}",
        pace + (f", {multipliers} multipliers" if multipliers else ""),
    )
    if isinstance(component, Fifo):
        lines = (*lines[:3], f"{component.depth} beats deep")
    fill = BOTTLENECK if is_slowest else LAYER if multipliers else PLUMBING
    hint = f"{stage.name}: {link}" if link else ""
    return Box(stage.name, (*lines, "bottleneck") if is_slowest else lines, fill, hint, link)


def _label(design: Design, wire: Wire) -> str:
    stream = design.stream(wire)
    return f"{stream.lanes} x {stream.format.lane_width} bit"


def write_report(
    design: Design,
    directory: Path,
    verdict: Verdict,
    area: Area | None = None,
    routed: Routed | None = None,
) -> Path:
    """Write `report.md`, `report.json` and `dataflow.svg` to the hardware directory."""
    files = {
        "report.md": report_text(design, verdict, area, routed),
        "report.json": json.dumps(pipeline_records(design, verdict, area, routed), indent=2) + "\n",
        "dataflow.svg": diagram(design, routed.mhz if routed else None, is_linked=True),
    }
    write_files(directory, files)
    return directory / "report.md"


@notebook.view(Design)
def design_html(design: Design, verdict: Verdict | None = None, area: Area | None = None) -> str:
    """Return the drawn pipeline, its verdict and area if they are known, and its stages."""
    pace = f"a tensor every {design.cycles():,} cycles"
    title = notebook.heading(design.name, pace, f"held by {bottleneck(design)}")
    notes = [notebook.note(str(each)) for each in (verdict, area) if each is not None]
    picture = diagram(design)
    drawn = picture[picture.index("<svg") :]
    rows = [{**asdict(row), "utilisation": f"{row.utilisation:.0%}"} for row in stage_rows(design)]
    return notebook.shown(title, *notes, drawn, notebook.table(rows))
