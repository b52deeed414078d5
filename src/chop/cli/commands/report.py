"""`mase report`: one page that shows what was done to a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.shared_options import STUDY_NAMES, DataOptions, ModelOptions, OutputOptions

EXAMPLES = (
    "mase report out/trace",
    "mase report out/quantize --before out/train --dataset digits",
    "mase report out/search --before out/train --studies out/search \\\n"
    "    --hardware out/simulate --title 'Digits in hardware'",
)
PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class ReportConfig(ModelOptions, DataOptions, OutputOptions):
    """Report. Without --dataset the measures come from the runs that made the models."""

    title: Annotated[str | None, "Title of the page."] = None
    before: Annotated[str | None, "Model to compare with."] = None
    studies: Annotated[tuple[str, ...], "Folders of searches."] = field(
        default=(), metadata={"lister": STUDY_NAMES}
    )
    sweeps: Annotated[tuple[str, ...], "Folders of sweeps."] = ()
    hardware: Annotated[str | None, "Folder that `mase simulate` wrote for a model."] = None
    runs: Annotated[tuple[str, ...], "Folders of `mase generate` and `mase shard`."] = ()
    out: Path = Path("out/report")


def run(config: ReportConfig, session: Session) -> dict[str, Any]:
    """Collect graphs, measures, studies, sweeps and hardware; write the page."""
    from chop.cli import run_results as read
    from chop.cli.source import load
    from chop.cli.train_and_measure import measured
    from chop.report.html import Report, write_report

    models = {"before": config.before, "after": config.model}
    models = {label: name for label, name in models.items() if name is not None}
    graphs, metrics = {}, {}
    stored = read.stored_metrics(config.before, config.model)
    with session.console.progress("report"):
        for label, name in models.items():
            chosen = dataclasses.replace(config, model=name)
            _, data, graph = load(chosen, is_alone=len(models) == 1)
            graphs[label if len(models) > 1 else "model"] = graph
            if data is not None:
                first = next(iter(graphs.values()))
                metrics[label] = measured(session, graph, data, chosen, first)[config.measure]
        if not graphs:
            raise UsageError("report: give a model, and --before to compare it with another.")
        fresh = {config.measure: list(metrics.values())} if metrics else {}
        report = Report(
            title=config.title or f"MASE report: {config.model}",
            graphs=graphs,
            metrics={**stored, **fresh},
            studies=[read.study(Path(name)) for name in config.studies],
            sweeps=[read.sweep(Path(name)) for name in config.sweeps],
            hardware=read.hardware(config.hardware, session.out),
            sensitivity=read.sensitivity(config.model),
            calibration=read.calibration_tables(config.model),
            routing=read.routing(config.hardware),
            **read.other_runs(config.runs),
        )
        page = write_report(session.folder / PAGE, report)
    size = page.stat().st_size
    session.console.say(f"{config.out / PAGE}: {size / 1e6:.2f} MB, opens without a network")
    record = {"metrics": metrics} if metrics or not stored else {"stored_metrics": stored}
    return {"page": str(config.out / PAGE), "bytes": size, **record}
