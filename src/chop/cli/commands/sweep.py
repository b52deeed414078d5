"""`mase sweep`: one way to compress, over many values, with its figure."""

from __future__ import annotations

import copy
from typing import Any

from chop.actions.resumable import Progress as Point
from chop.actions.resumable import duration
from chop.actions.subject import Subject
from chop.actions.sweeps import SWEEPS, sweep
from chop.cli.configs import SweepConfig
from chop.cli.console import Progress
from chop.cli.data import Data, require_data
from chop.cli.session import Session
from chop.cli.settings import identity
from chop.cli.source import describe, find_source, load_graph
from chop.cli.training import check_identity, make_trainer, training_arguments
from chop.ir.graph import MaseGraph
from chop.report import draw_sweep

RECORDS = "records"
OBSERVED_BATCHES = 4


def run(config: SweepConfig, session: Session) -> dict[str, Any]:
    """Measure what is not measured yet, then draw."""
    name = SWEEPS.canonical(str(config.name))
    source = find_source(config)
    data = require_data(config, source.place, "sweep")
    graph = load_graph(config, source, data)
    subject = make_subject(graph, data, config)
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


def make_subject(graph: MaseGraph, data: Data, config: SweepConfig) -> Subject:
    """The model as a sweep wants it: copies to change, a way to train and to measure them."""

    def trainer(changed: MaseGraph, seed: int) -> Any:
        arguments = training_arguments(changed, config)
        return make_trainer(changed, data, config, config.epochs, {**arguments, "seed": seed})

    return Subject(
        graph=lambda seed: copy.deepcopy(graph),
        train=lambda changed, seed: trainer(changed, seed).train() and None,
        evaluate=lambda changed: trainer(changed, 0).evaluate()[f"eval_{config.metric}"],
        batches=lambda: data.batches(graph.model, config.eval_batch_size, OBSERVED_BATCHES),
    )
