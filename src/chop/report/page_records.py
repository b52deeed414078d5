"""Everything a report shows, as plain data that JSON can say. `chop.report.html` draws it."""

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
from chop.report.graph_comparison import layer_rows
from chop.report.graph_records import graph_record, plain
from chop.report.node_positions import block_of, lines_of, place, place_blocks, place_nodes
from chop.report.notation import format_text, shape_text
from chop.report.page_record import PageRecord
from chop.report.provenance import gather_provenance
from chop.report.run_results import calibration_record, routing_record, sharding_record
from chop.report.study_figures import study_record
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
"""How a number is written, by the last word of its name; others are plain counts or numbers."""
TOTALS = {
    "parameters": "parameters",
    "weight bytes": "bytes",
    "bits per weight": "bits",
    "weight sparsity": "sparsity",
    "FLOPs": "flops",
}
"""Cards about the graphs: their title and the total they show."""


@dataclass(frozen=True)
class Report:
    """What to show. Sections without data are absent.

    `graphs`: by label; the first is "before", the last is "after", one alone is fine.
    `metrics`: the numbers that matter; a pair is a value before and after.
    `studies`: plain study records. `sweeps`: lists of records as `chop.actions.sweep` gives them.
    `sensitivity`: the losses of formats in layers, as `mase quantize --bits` writes them.
    `hardware`: what `build_hardware` gave, or the content of its `report.json`; stages with a
    `link` lead to their RTL.
    `calibration`: rows by the title of their table, as `mase quantize` writes them.
    `generation`: results of `mase generate`. `sharding`: the content of a `plan.json`.
    `routing`: the content of a `route.json`, what place and route reached.
    `provenance`: gathered from this process where it is None.
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
    """All that the page is drawn from; no weight is in it, only histograms of weights."""
    graphs = [graph_record(label, graph) for label, graph in report.graphs.items()]
    provenance = gather_provenance() if report.provenance is None else report.provenance
    records = {
        "title": report.title,
        "cards": [*_metric_cards(report.metrics), *_total_cards(graphs)],
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
        "provenance": provenance,
    }
    return {name: plain(value) for name, value in records.items() if value}


# -- the numbers that matter ----------------------------------------------------------------------


def _metric_cards(metrics: Mapping[str, Any]) -> list[PageRecord]:
    return [_card(name, value) for name, value in metrics.items()]


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


# -- figures --------------------------------------------------------------------------------------


def _placed(graphs: list[PageRecord]) -> PageRecord:
    """The graphs, each with the number of its layout; graphs of one shape share it."""
    layouts: list[PageRecord] = []
    numbers: dict[str, int] = {}
    told = []
    for graph in graphs:
        key = repr(([(lines_of(n), block_of(n)) for n in graph["nodes"]], graph["edges"]))
        if key not in numbers:
            numbers[key] = len(layouts)
            layouts.append({"nodes": place_nodes(graph), "blocks": place_blocks(graph)})
        told.append({**graph, "layout": numbers[key]})
    return {"graphs": told, "layouts": layouts}


def sweep_figures(records: Sequence[Mapping[str, Any]]) -> list[PageRecord]:
    """A figure for each sweep in the records: title, axes and curves with their spread."""
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


# -- hardware -------------------------------------------------------------------------------------


def _hardware(given: Mapping[str, Any] | HardwareBuild | None) -> PageRecord | None:
    """The records of a design, with places for the boxes of its block diagram."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        given = build_records(given)
    stages, streams = given.get("stages", ()), given.get("streams", ())
    names = [*given.get("inputs", ()), *(s["stage"] for s in stages), *given.get("outputs", ())]
    number = {name: i for i, name in enumerate(names)}
    rows = {stage["stage"]: stage for stage in stages}
    edges = [(number[s["source"]], number[s["target"]]) for s in streams]
    slowest = given.get("bottleneck")
    lines = [_stage_lines(name, rows.get(name), is_slowest=name == slowest) for name in names]
    told = {"stages": [_written(s) for s in stages], "inputs": _ports(given.get("inputs", {}))}
    return {**given, **told, "boxes": names, "layout": place(lines, edges)}


def build_records(build: HardwareBuild) -> dict[str, Any]:
    """What the `report.json` of a build holds."""
    return pipeline_records(build.lowered.design, build.verdict, build.area, build.routed)


def _written(stage: Mapping[str, Any]) -> PageRecord:
    """A stage, its format and shape in the notation of the page."""
    ways = {"format": format_text, "shape": shape_text}
    return {**stage, **{key: way(str(stage[key])) for key, way in ways.items() if key in stage}}


def _ports(inputs: Any) -> Any:
    if not isinstance(inputs, Mapping):
        return inputs
    return {n: {**p, "format": format_text(str(p.get("format", "")))} for n, p in inputs.items()}


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
    told = [] if busy is None else [f"{busy:.0%} busy"]
    return (name, stage["module"], pace, *told, *(["bottleneck"] if is_slowest else []))
