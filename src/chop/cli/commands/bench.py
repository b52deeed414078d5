"""`mase bench`: models side by side, by what they cost and what they are worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from chop.actions.latency import LatencyRecord, latency_figure, latency_table, measure_latency
from chop.actions.model_size import model_size
from chop.actions.records import write_csv
from chop.cli.configs import BenchConfig
from chop.cli.data import Data, load_data
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.source import describe, example_of, find_source, load_graph
from chop.cli.training import measure
from chop.cli.units import titled
from chop.ir.graph import MaseGraph
from chop.ir.trace.inputs import Signature

SIZES = ("parameters", "weight_bits", "activation_bits", "bytes")
"""What is told of the size of each model."""


def run(config: BenchConfig, session: Session) -> dict[str, Any]:
    """Measure and time every model, and time each compiled where asked."""
    for device in config.devices or ():
        _check_device(device)
    names = list(dict.fromkeys([str(config.model), *config.others, *config.against]))
    is_alone = len(names) == 1
    source = find_source(config, is_alone=is_alone)
    data = load_data(config, source.place)
    graphs = {source.name: load_graph(config, source, data)}
    for name in names[1:]:
        other = dataclasses.replace(config, model=name)
        graphs[name] = load_graph(other, find_source(other, is_alone=False), data)
    first = graphs[source.name]
    inputs = example_of(first, config.batch)
    for name, graph in graphs.items():
        _check_inputs(name, graph.model, inputs)
    if data is not None:
        for graph in graphs.values():
            measure(graph, data.few(), config, first)
    session.start_work()
    records = _time(config, session, graphs, inputs)
    rows = _compare(config, session, graphs, data, records)
    write_csv(session.folder / "models.csv", rows)
    latency_figure(records, session.folder / "latency.svg")
    session.console.table([titled(row) for row in rows], floatfmt=".4g", intfmt=",")
    session.console.say(f"\n{latency_table(records)}")
    timed = [asdict(record) for record in records]
    return {**describe(first, source), "models": rows, "latency": timed}


def _time(
    config: BenchConfig, session: Session, graphs: Mapping[str, MaseGraph], inputs: Any
) -> list[LatencyRecord]:
    models = {name: graph.model for name, graph in graphs.items()}
    prepare = {}
    if config.compile:
        prepare = {f"{name}, compiled": torch.compile for name in models}
        models |= {f"{name}, compiled": model for name, model in models.items()}
    with session.console.progress("time"):
        return measure_latency(
            models,
            inputs,
            devices=config.devices,
            iterations=config.iterations,
            prepare=prepare,
        )


def _compare(
    config: BenchConfig,
    session: Session,
    graphs: Mapping[str, MaseGraph],
    data: Data | None,
    records: Iterable[LatencyRecord],
) -> list[dict[str, Any]]:
    """A row for each model; times are of the most calls, on the first device."""
    last = {r.program: r for r in reversed(list(records)) if r.device == "cpu"} or {
        r.program: r for r in reversed(list(records))
    }
    reference = next(iter(graphs.values()))
    rows = []
    for name, graph in graphs.items():
        sizes = model_size(graph)
        row: dict[str, Any] = {"model": name}
        if data is not None:
            with session.console.progress(f"measure {name} on {len(data.test)} rows"):
                row[config.measure] = measure(graph, data, config, reference)[config.measure]
        row |= {key: sizes[key] for key in SIZES}
        rows.append({**row, "latency": last[name].median, "speed-up": last[name].speedup})
    return rows


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
