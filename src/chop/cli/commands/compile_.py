"""`mase compile`: torch.compile, and what it gains."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch

from chop.actions.latency import latency_figure, latency_table, measure_latency
from chop.cli.session import Session
from chop.cli.settings import to_table
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions
from chop.cli.source import describe, example_of, load
from chop.passes import compile_transform_pass
from chop.passes.graph.transforms.compile import CompileArgs, check_backend

EXAMPLES = ("mase compile out/train", "mase compile prajjwal1/bert-tiny --mode max-autotune")


@dataclass(frozen=True, kw_only=True)
class CompileConfig(ModelOptions, DataOptions, OutputOptions):
    """Timing."""

    compile: CompileArgs = field(default_factory=CompileArgs, metadata={"prefix": ""})
    iterations: Annotated[tuple[int, ...], "Numbers of calls; each is timed separately."] = (5, 50)
    batch: Annotated[int | None, "Rows of the input. Default: those of the captured input."] = None
    out: Path = Path("out/compile")


def run(config: CompileConfig, session: Session) -> dict[str, Any]:
    """Find graph breaks, compile, and compare the latency with the eager model."""
    source, _, graph = load(config)
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
