"""`mase sweep`: one way to compress, over many values, with its figure."""

from __future__ import annotations

from typing import Any

from chop.actions.resumable import Progress as Point
from chop.actions.resumable import duration
from chop.actions.sweeps import SWEEPS, sweep
from chop.cli.configs import SweepConfig
from chop.cli.console import Progress
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.settings import identity
from chop.cli.source import describe
from chop.cli.subject import load_subject
from chop.cli.training import check_identity
from chop.report import draw_sweep

RECORDS = "records"


def run(config: SweepConfig, session: Session) -> dict[str, Any]:
    """Measure what is not measured yet, then draw."""
    name = SWEEPS.canonical(str(config.name))
    if name != "sparsity" and any(value % 1 for value in config.values or ()):
        given = ", ".join(f"{value:g}" for value in config.values or ())
        raise UsageError(f"sweep.values: {name} takes whole numbers, got {given}.")
    source, graph, subject = load_subject(config, "sweep")
    own = {k: v for k, v in identity(config).items() if k not in ("values", "seeds")}
    folder = session.out / RECORDS
    check_identity(folder, own, resume=config.resume)
    baseline = subject.evaluate(graph)
    total = len(SWEEPS[name].points(config.seeds, config.values))
    with session.console.progress(f"sweep {name}", total) as progress:
        records = sweep(
            name, subject, folder, config.seeds, config.values, lambda p: _tell(progress, p)
        )
    levels = {"uncompressed": baseline}
    figures = draw_sweep(name, records, session.folder / name, levels=levels)
    session.console.table(records, floatfmt=".4f")
    session.console.say(f"\nuncompressed: {baseline:.4f}")
    facts = {"sweep": name, config.metric: baseline, "figures": [f.name for f in figures]}
    return {**describe(graph, source), **facts, "records": records}


def _tell(progress: Progress, point: Point) -> None:
    progress.to(point.done, f"about {duration(point.seconds_left)} left")
