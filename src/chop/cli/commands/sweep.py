"""`mase sweep`: one way to compress, over many values, with its figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chop.actions.resumable import Point, SweepProgress, count_known, duration
from chop.actions.sweeps import SWEEPS, sweep
from chop.cli.configs import SweepConfig
from chop.cli.console import ProgressDisplay
from chop.cli.model_under_study import ModelAndData, load_subject
from chop.cli.runs import question, run_folder
from chop.cli.session import Session
from chop.cli.source import describe
from chop.cli.training import measure
from chop.cli.units import titled, unit_of
from chop.report import draw_sweep

RECORDS = "records"


def run(config: SweepConfig, session: Session) -> dict[str, Any]:
    """Measure what is not measured yet, then draw."""
    name = SWEEPS.canonical(str(config.name))
    points = SWEEPS[name].points(config.seeds, config.values)
    loaded = load_subject(config, "sweep")
    if session.is_dry:
        _try(config, loaded, points)
    session.start_work()
    asked = question(config, loaded.graph, loaded.data, leave_out=("values", "seeds"))
    folder = run_folder(session.out / RECORDS, asked, resume=config.resume)
    _tell_reused(session, count_known(points, folder / f"{name}.jsonl"), len(points), folder)
    baseline = loaded.subject.evaluate(loaded.graph)
    with session.console.progress(f"sweep {name}", len(points)) as progress:
        records = sweep(
            name, loaded.subject, folder, config.seeds, config.values, lambda p: _tell(progress, p)
        )
    levels = {"uncompressed": baseline}
    figures = draw_sweep(name, records, session.folder / name, levels=levels)
    told = dict.fromkeys(("before", "after"), f"{config.measure}, {unit_of(config.measure)}")
    session.console.table([titled(record, told) for record in records], floatfmt=".4f")
    rows = len(loaded.data.for_choosing().test)
    session.console.say(
        f"\nuncompressed: {baseline:.4f} ({config.measure} on {rows} validation rows, as above)"
    )
    facts = {"sweep": name, config.measure: baseline, "figures": [f.name for f in figures]}
    return {**describe(loaded.graph, loaded.source), **facts, "records": records}


def _try(config: SweepConfig, loaded: ModelAndData, points: Sequence[Point]) -> None:
    """Compress at every point of the first seed, and measure a few rows."""
    measure(loaded.graph, loaded.data.few(), config, loaded.graph)
    for point in points:
        if point["seed"] == config.seeds[0]:
            SWEEPS[point["sweep"]].change(loaded.subject.graph(0), loaded.subject, point)


def _tell_reused(session: Session, known: int, total: int, folder: Path) -> None:
    if known:
        session.console.say(
            f"{known} of {total} points were measured before with this model, data and settings "
            f"({folder}); --no-resume measures them again."
        )


def _tell(progress: ProgressDisplay, point: SweepProgress) -> None:
    progress.to(point.done, f"about {duration(point.seconds_left)} left")
