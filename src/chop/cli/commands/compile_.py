"""`mase compile`: torch.compile, and what it brings."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from chop.actions.latency import latency_figure, latency_table, measure_latency
from chop.cli.configs import DataOptions, ModelOptions, OutputOptions
from chop.cli.data import load_data
from chop.cli.session import Session
from chop.cli.settings import to_table
from chop.cli.source import describe, example_of, find_source, load_graph
from chop.passes import compile_transform_pass
from chop.passes.graph.transforms.compile import CompileArgs, check_backend


@dataclass(frozen=True, kw_only=True)
class CompileConfig(ModelOptions, DataOptions, OutputOptions):
    """Timing.

    `iterations`: calls to time, each number anew. `batch`: rows of the input, by default as the
    model was traced.
    """

    compile: CompileArgs = field(default_factory=CompileArgs, metadata={"prefix": ""})
    iterations: tuple[int, ...] = (5, 50)
    batch: int | None = None
    out: Path = Path("out/compile")


def run(config: CompileConfig, session: Session) -> dict[str, Any]:
    """Find graph breaks, compile, time against the model as it is."""
    source = find_source(config)
    graph = load_graph(config, source, load_data(config, source.place))
    inputs = example_of(graph, config.batch)
    settings = {k: v for k, v in to_table(config.compile).items() if k != "dummy_in"}
    check_backend(config.compile.backend)
    session.start_work()
    with session.console.progress("compile"):
        _, info = compile_transform_pass(copy.deepcopy(graph), settings | {"dummy_in": inputs})
    chosen = config.compile
    options: dict[str, Any] = {} if chosen.mode == "default" else {"mode": chosen.mode}
    options |= {"backend": chosen.backend, "dynamic": chosen.dynamic}
    models = {"eager": graph.model, "compiled": graph.model}
    prepare = {"compiled": lambda model: torch.compile(model, **options)}
    with session.console.progress("time"):
        records = measure_latency(models, inputs, iterations=config.iterations, prepare=prepare)
    latency_figure(records, session.folder / "latency.svg")
    session.console.say(latency_table(records))
    session.console.say(f"\n{len(info['breaks'])} graph breaks")
    session.console.table(info["breaks"])
    rows = [asdict(record) for record in records]
    return {**describe(graph, source), "breaks": info["breaks"], "latency": rows}
