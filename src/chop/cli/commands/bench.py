"""`mase bench`: the latency of models, side by side."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from typing import Any

import torch

from chop.actions.latency import latency_figure, latency_table, measure_latency
from chop.cli.configs import BenchConfig
from chop.cli.data import load_data
from chop.cli.session import Session
from chop.cli.source import describe, example_of, find_source, load_graph


def run(config: BenchConfig, session: Session) -> dict[str, Any]:
    """Time every model, and each compiled where asked."""
    source = find_source(config)
    data = load_data(config, source.place)
    graph = load_graph(config, source, data)
    models = {source.name: graph.model}
    for name in config.against:
        other = dataclasses.replace(config, model=name)
        models[name] = load_graph(other, find_source(other), data).model
    prepare = {}
    if config.compile:
        prepare = {f"{name}, compiled": torch.compile for name in models}
        models |= {f"{name}, compiled": model for name, model in models.items()}
    with session.console.progress("time"):
        records = measure_latency(
            models,
            example_of(graph, config.batch),
            devices=config.devices,
            iterations=config.iterations,
            prepare=prepare,
        )
    latency_figure(records, session.folder / "latency.svg")
    session.console.say(latency_table(records))
    return {**describe(graph, source), "latency": [asdict(record) for record in records]}
