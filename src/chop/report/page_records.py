"""Content of a report as plain data for JSON; `chop.report.html` draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chop import notebook
from chop.actions.readers import check_sensitivity, check_sweep
from chop.actions.sweeps import SWEEPS
from chop.arguments import MAPPING, TEXT, check
from chop.errors import ConfigError
from chop.hw.flow.hardware_report import pipeline_records
from chop.ir.graph import MaseGraph
from chop.report.graph_records import graph_record, plain
from chop.report.node_positions import block_of, lines_of, place, place_blocks, place_nodes
from chop.report.page_parts import (
    PageRecord,
    calibration_record,
    format_text,
    layer_rows,
    routing_record,
    shape_text,
    sharding_record,
)
from chop.report.provenance import gather_provenance
from chop.report.study_page import study_record
from chop.report.sweep_figures import baseline_levels, sweep_curves

if TYPE_CHECKING:
    from chop.actions.hardware import HardwareBuild

UNITS = {
    "bytes": "bytes",
    "size": "bytes",
    "accuracy": "share",
    "sparsity": "share",
    "utilisation": "share",
    "seconds": "seconds",
}
"""Last word of a measure's name -> its unit; other measures are plain numbers."""
TOTALS = {
    "parameters": "parameters",
    "weight bytes": "bytes",
    "bits per weight": "bits",
    "weight sparsity": "sparsity",
    "FLOPs": "flops",
}
"""Title of a card about the graphs -> the total it shows."""


@dataclass(frozen=True)
class Report:
    """Content of a report. Sections without data are omitted.

    `graphs`: by label; the first is "before" and the last is "after", or there is one graph.
    `metrics`: the main results by name; a pair is a value before and after.
    `studies`: plain study records. `sweeps`: lists of records from `chop.actions.sweep`.
    `sensitivity`: the losses of formats in layers, from `mase quantize --bits`.
    `hardware`: the result of `build_hardware`, or the content of its `report.json`; stages with a
    `link` refer to their RTL.
    `calibration`: rows by the title of their table, from `mase quantize`.
    `generation`: results of `mase generate`. `sharding`: the content of a `plan.json`.
    `routing`: the content of a `route.json`, the result of place and route.
    `provenance`: None means that of this process.
    """

    title: str
    graphs: Mapping[str, MaseGraph] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    studies: Sequence[Mapping[str, Any]] = ()
    sweeps: Sequence[Sequence[Mapping[str, Any]]] = ()
    hardware: Mapping[str, Any] | HardwareBuild | None = None
    provenance: Mapping[str, Any] | None = None
    sensitivity: Mapping[str, Any] | None = None
    calibration: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    generation: Sequence[Mapping[str, Any]] = ()
    sharding: Mapping[str, Any] | None = None
    routing: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check("Report.title", TEXT, self.title)
        check("Report.graphs", MAPPING, self.graphs)
        for study in self.studies:
            check("Report.studies", MAPPING, study)
        for records in self.sweeps:
            check_sweep(list(records), "Report.sweeps", ConfigError)
        if self.sensitivity is not None:
            check_sensitivity(dict(self.sensitivity), "Report.sensitivity", ConfigError)
        for label, graph in self.graphs.items():
            if not isinstance(graph, MaseGraph):
                kind = type(graph).__name__
                raise ConfigError(f"Report.graphs['{label}'] must be a MaseGraph, got {kind}.")

    def _repr_html_(self) -> str | None:
        """Return the page for a cell of a notebook."""
        return notebook.view_of(self)


def report_records(report: Report) -> PageRecord:
    """Return the data that the page is drawn from; weights appear only as histograms."""
    graphs = [graph_record(label, graph) for label, graph in report.graphs.items()]
    records = {
        "title": report.title,
        "cards": [*(_card(*pair) for pair in report.metrics.items()), *_total_cards(graphs)],
        "layers": layer_rows(graphs),
        **_placed(graphs),
        "calibration": calibration_record(report.calibration),
        "sensitivity": report.sensitivity,
        "generation": list(report.generation),
        "sharding": sharding_record(report.sharding),
        "routing": routing_record(report.routing),
        "studies": [study_record(study) for study in report.studies],
        "figures": [figure for records in report.sweeps for figure in sweep_figures(records)],
        "hardware": _hardware(report.hardware),
        "provenance": gather_provenance() if report.provenance is None else report.provenance,
    }
    return {name: plain(value) for name, value in records.items() if value}


def _total_cards(graphs: Sequence[PageRecord]) -> list[PageRecord]:
    cards = []
    for title, name in TOTALS.items():
        values = [graph["totals"][name] for graph in graphs]
        if any(values):
            same = values[0] == values[-1]
            cards.append(_card(title, values[-1] if same else (values[0], values[-1])))
    return cards


def _card(name: str, value: Any) -> PageRecord:
    values = value if isinstance(value, tuple | list) and len(value) in (1, 2) else [value]
    before, after = values[0] if len(values) == 2 else None, values[-1]
    unit = UNITS.get(name.replace("_", " ").split()[-1].lower(), "number") if name else "number"
    return {"name": name, "value": after, "before": before, "unit": unit}


def _placed(graphs: list[PageRecord]) -> PageRecord:
    """Return the layouts, and the graphs with their layout's number; equal graphs share one."""
    layouts: list[PageRecord] = []
    numbers: dict[str, int] = {}
    placed = []
    for graph in graphs:
        key = repr(([(lines_of(n), block_of(n)) for n in graph["nodes"]], graph["edges"]))
        if key not in numbers:
            numbers[key] = len(layouts)
            layouts.append({"nodes": place_nodes(graph), "blocks": place_blocks(graph)})
        placed.append({**graph, "layout": numbers[key]})
    return {"graphs": placed, "layouts": layouts}


def sweep_figures(records: Sequence[Mapping[str, Any]]) -> list[PageRecord]:
    """Return a figure for each sweep in the records: title, axes and curves with their spread."""
    names = dict.fromkeys(record["sweep"] for record in records)
    return [_figure(name, records) for name in names]


def _figure(name: str, records: Sequence[Mapping[str, Any]]) -> PageRecord:
    sweep = SWEEPS[name]
    curves = [curve for curve in sweep_curves(name, records) if curve.x]
    return {
        "title": f"Accuracy over {sweep.label}",
        "x": sweep.label,
        "y": "accuracy",
        "is_log": name == "lora_rank",
        "levels": baseline_levels(name, records),
        "curves": [
            {"label": c.label, "points": list(zip(c.x, c.mean, c.low, c.high, strict=True))}
            for c in curves
        ],
    }


def _hardware(build: Mapping[str, Any] | HardwareBuild | None) -> PageRecord | None:
    """Return the records of a design and the layout of its block diagram."""
    if build is None:
        return None
    design = build if isinstance(build, Mapping) else build_records(build)
    stages, inputs = design.get("stages", ()), design.get("inputs", {})
    names = [*inputs, *(s["stage"] for s in stages), *design.get("outputs", ())]
    number = {name: i for i, name in enumerate(names)}
    rows = {stage["stage"]: stage for stage in stages}
    edges = [(number[s["source"]], number[s["target"]]) for s in design.get("streams", ())]
    slowest = design.get("bottleneck")
    lines = [_stage_lines(name, rows.get(name), is_slowest=name == slowest) for name in names]
    if isinstance(inputs, Mapping):
        inputs = {
            n: {**p, "format": format_text(str(p.get("format", "")))} for n, p in inputs.items()
        }
    return {
        **design,
        "stages": [_in_page_notation(stage) for stage in stages],
        "inputs": inputs,
        "boxes": names,
        "layout": place(lines, edges),
    }


def build_records(build: HardwareBuild) -> dict[str, Any]:
    """Return the content of the `report.json` of a build."""
    return pipeline_records(build.lowered.design, build.verdict, build.area, build.routed)


def _in_page_notation(stage: Mapping[str, Any]) -> PageRecord:
    writers = {"format": format_text, "shape": shape_text}
    return {
        **stage,
        **{key: write(str(stage[key])) for key, write in writers.items() if key in stage},
    }


def _stage_lines(
    name: str, stage: Mapping[str, Any] | None, *, is_slowest: bool
) -> tuple[str, ...]:
    if stage is None:
        return (name,)
    if "depth" in stage:
        return (name, stage["module"], f"{stage['depth']:,} beats deep")
    multipliers = stage["multipliers"]
    pace = f"{stage['cycles']:,} cycles" + (f" · {multipliers:,} mult" if multipliers else "")
    busy = stage.get("utilisation")
    use = [] if busy is None else [f"{busy:.0%} busy"]
    return (name, stage["module"], pace, *use, *(["bottleneck"] if is_slowest else []))
