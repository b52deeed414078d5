"""`mase report`: one page that shows what was done to a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop import files
from chop.actions.readers import check_hardware, check_sensitivity, check_sweep
from chop.actions.records import read_records
from chop.actions.study_files import check_study
from chop.cli.commands.quantize import SENSITIVITY
from chop.cli.commands.run_results import calibration_tables, other_runs, stored_metrics
from chop.cli.configs import ReportConfig
from chop.cli.data import load_data
from chop.cli.failures import UsageError
from chop.cli.output import settle
from chop.cli.session import Session
from chop.cli.source import find_source, load_graph
from chop.cli.training import measured
from chop.report.html import Report, write_report
from chop.report.page_parts import with_links

PAGE = "report.html"


def run(config: ReportConfig, session: Session) -> dict[str, Any]:
    """Gather graphs, measures, studies, sweeps and hardware; write the page."""
    names = {"before": config.before, "after": config.model}
    given = {label: name for label, name in names.items() if name is not None}
    graphs, metrics = {}, {}
    stored = stored_metrics(config.before, config.model)
    with session.console.progress("report"):
        for label, name in given.items():
            chosen = dataclasses.replace(config, model=name)
            source = find_source(chosen, is_alone=len(given) == 1)
            data = load_data(chosen, source.place)
            graphs[label if len(given) > 1 else "model"] = load_graph(chosen, source, data)
            if data is not None:
                first, last = (list(graphs.values())[i] for i in (0, -1))
                metrics[label] = measured(session, last, data, chosen, first)[config.measure]
        if not graphs:
            raise UsageError("report: give a model, and --before to compare it with another.")
        report = Report(
            title=config.title or f"MASE report: {config.model}",
            graphs=graphs,
            metrics={**stored, **_measured(config.measure, metrics)},
            studies=[_study(Path(name)) for name in config.studies],
            sweeps=[_sweep(Path(name)) for name in config.sweeps],
            hardware=_hardware(config.hardware, session.out),
            sensitivity=_sensitivity(config.model),
            calibration=calibration_tables(config.model),
            routing=_routing(config.hardware),
            **other_runs(config.runs),
        )
        page = write_report(session.folder / PAGE, report)
    size = page.stat().st_size
    session.console.say(f"{config.out / PAGE}: {size / 1e6:.2f} MB, opens without a network")
    told = {"metrics": metrics} if metrics or not stored else {"stored_metrics": stored}
    return {"page": str(config.out / PAGE), "bytes": size, **told}


def _measured(metric: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {metric: list(values.values())} if values else {}


def read_json(folder: Path, name: str) -> Mapping[str, Any]:
    """The JSON file `name` in a folder, or the file itself."""
    settle(folder)
    file = folder / name if folder.is_dir() else folder
    if not file.is_file():
        raise UsageError(f"{file}: no such file.")
    found: Mapping[str, Any] = files.read_json(file, UsageError)
    return found


def _study(place: Path) -> Mapping[str, Any]:
    return check_study(read_json(place, "study.json"), str(place), UsageError)


def _sweep(folder: Path) -> Sequence[dict[str, Any]]:
    found = sorted(folder.rglob("*.jsonl"))
    if not found:
        raise UsageError(f"{folder}: no records of a sweep (*.jsonl).")
    records = [record for file in found for record in read_records(file)]
    return check_sweep(records, str(folder), UsageError)


def _sensitivity(name: str | None) -> Mapping[str, Any] | None:
    """What `mase quantize --bits` chose from, where the model is a folder that it wrote."""
    if name is None or not (Path(name) / SENSITIVITY).is_file():
        return None
    told = read_json(Path(name), SENSITIVITY)
    return check_sensitivity(told, f"{name}/{SENSITIVITY}", UsageError)


def _routing(name: str | None) -> Mapping[str, Any] | None:
    """Of the parts that the design was routed for, the one that reached the highest clock."""
    if name is None:
        return None
    found = [read_json(f, "") for f in sorted(Path(name).glob("hardware/route/*/route.json"))]
    return max(found, key=lambda told: told.get("mhz", 0), default=None)


def _hardware(name: str | None, page_folder: Path) -> Mapping[str, Any] | None:
    if name is None:
        return None
    folder = Path(name) / "hardware"
    told = check_hardware(read_json(folder, "report.json"), f"{folder}/report.json", UsageError)
    return with_links(told, folder, page_folder)
