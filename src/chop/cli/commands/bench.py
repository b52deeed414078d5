"""`mase bench`: the latency of models, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch

from chop.actions.latency import latency_figure, latency_table, measure_latency
from chop.cli.configs import BenchConfig
from chop.cli.data import load_data
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.source import describe, example_of, find_source, load_graph
from chop.ir.trace.inputs import Signature


def run(config: BenchConfig, session: Session) -> dict[str, Any]:
    """Time every model, and each compiled where asked."""
    for device in config.devices or ():
        _check_device(device)
    is_alone = not config.against
    source = find_source(config, is_alone=is_alone)
    data = load_data(config, source.place)
    graph = load_graph(config, source, data)
    models = {source.name: graph.model}
    for name in config.against:
        other = dataclasses.replace(config, model=name)
        models[name] = load_graph(other, find_source(other, is_alone=is_alone), data).model
    prepare = {}
    if config.compile:
        prepare = {f"{name}, compiled": torch.compile for name in models}
        models |= {f"{name}, compiled": model for name, model in models.items()}
    inputs = example_of(graph, config.batch)
    for name, model in models.items():
        _check_inputs(name, model, inputs)
    with session.console.progress("time"):
        records = measure_latency(
            models,
            inputs,
            devices=config.devices,
            iterations=config.iterations,
            prepare=prepare,
        )
    latency_figure(records, session.folder / "latency.svg")
    session.console.say(latency_table(records))
    return {**describe(graph, source), "latency": [asdict(record) for record in records]}


def _check_device(name: str) -> None:
    """A usage error unless this machine has the device."""
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if name not in (*there, *(["cuda"] if len(there) > 1 else [])):
        raise UsageError(f"bench.devices: no device '{name}' here. Here: {', '.join(there)}.")


def _check_inputs(name: str, model: torch.nn.Module, inputs: Iterable[str]) -> None:
    """A usage error unless the model takes the inputs of the first one."""
    known = Signature.of(model).names
    unknown = [given for given in inputs if given not in known]
    if unknown:
        raise UsageError(
            f"bench.against: '{name}' has no input '{unknown[0]}'; models are timed on the same "
            f"inputs. It takes: {', '.join(known)}."
        )
