"""`mase sweep`: one way to compress, at many values, with its figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.cli.names import names, registered_names
from chop.cli.session import Session
from chop.cli.shared_options import (
    POSITIONAL,
    DataOptions,
    ModelOptions,
    OutputOptions,
    TrainingOptions,
)
from chop.errors import ConfigError

EXAMPLES = (
    "mase sweep fixed_point_width out/train --dataset digits --values 4,6,8",
    "mase sweep sparsity out/train --dataset digits --seeds 0,1,2",
    "mase sweep lora_rank prajjwal1/bert-tiny --dataset imdb",
)
RECORDS = "records"


@dataclass(frozen=True, kw_only=True)
class SweepConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Sweep."""

    name: Annotated[str | None, "The quantity that varies (`mase list sweeps`)."] = field(
        default=None, metadata=names("sweeps", **POSITIONAL)
    )
    values: Annotated[
        tuple[float, ...] | None, "Values to measure. Default: the values of the sweep."
    ] = None
    seeds: Annotated[tuple[int, ...], "Seeds; the sweep runs once for each."] = (0,)
    epochs: Annotated[float, "Epochs of training after each compression."] = 1.0
    out: Path = Path("out/sweep")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is None:
            raise ConfigError(f"no sweep given. Known: {', '.join(registered_names('sweeps'))}.")


def run(config: SweepConfig, session: Session) -> dict[str, Any]:
    """Measure the points that have no record yet, then draw all of them."""
    from chop.actions.resumable import count_recorded, duration
    from chop.actions.sweeps import SWEEPS, sweep
    from chop.cli.run_identity import run_folder, run_identity
    from chop.cli.source import describe
    from chop.cli.subjects import load_subject
    from chop.cli.train_and_measure import measure
    from chop.cli.units import titled, unit_of
    from chop.report import draw_sweep

    name = SWEEPS.canonical(str(config.name))
    points = SWEEPS[name].points(config.seeds, config.values)
    loaded = load_subject(config, "sweep")
    if session.is_dry:  # compress at every point of the first seed, and measure a few rows
        measure(loaded.graph, loaded.data.few(loaded.graph), config, loaded.graph)
        for point in points:
            if point["seed"] == config.seeds[0]:
                SWEEPS[point["sweep"]].change(loaded.subject.graph(0), loaded.subject, point)
    session.start_work()
    identity = run_identity(config, loaded.graph, loaded.data, leave_out=("values", "seeds"))
    folder = run_folder(session.out / RECORDS, identity, resume=config.resume)
    reused = count_recorded(points, folder / f"{name}.jsonl")
    if reused:
        session.console.say(
            f"{reused} of {len(points)} points were measured before with this model, data and "
            f"settings ({folder}); --no-resume measures them again."
        )
    baseline = loaded.subject.evaluate(loaded.graph)
    with session.console.progress(f"sweep {name}", len(points)) as progress:
        records = sweep(
            name,
            loaded.subject,
            folder,
            config.seeds,
            config.values,
            lambda p: progress.to(p.done, f"about {duration(p.seconds_left)} left"),
        )
    figures = draw_sweep(name, records, session.folder / name, levels={"uncompressed": baseline})
    units = dict.fromkeys(("before", "after"), f"{config.measure}, {unit_of(config.measure)}")
    session.console.table([titled(record, units) for record in records], floatfmt=".4f")
    rows = len(loaded.data.for_choosing().test)
    session.console.say(
        f"\nuncompressed: {baseline:.4f} ({config.measure} on {rows} validation rows, as above)"
    )
    facts = {"sweep": name, config.measure: baseline, "figures": [f.name for f in figures]}
    return {**describe(loaded.graph, loaded.source), **facts, "records": records}
