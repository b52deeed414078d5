"""`mase bench`: models side by side, by cost and accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from chop.cli.failures import UsageError
from chop.cli.names import names
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL, DataOptions, ModelOptions, OutputOptions

if TYPE_CHECKING:
    from chop.actions.latency import LatencyRecord
    from chop.cli.data import Data
    from chop.ir.graph import MaseGraph

EXAMPLES = (
    "mase bench out/train out/quantize --dataset digits",
    "mase bench ./llama out/quantize --dataset ./text --test-rows 64 --batch 1",
    "mase bench prajjwal1/bert-tiny --compile --iterations 5,50,200",
)
SIZES = ("parameters", "weight_bits", "activation_bits", "bytes")
"""Columns about the size of a model."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig(ModelOptions, DataOptions, OutputOptions):
    """Comparison."""

    keeps_packed: ClassVar[bool] = True

    others: Annotated[
        tuple[str, ...],
        "Further models, timed in turns on the inputs of the first, which is the baseline. With "
        "--dataset they are also evaluated on the same rows.",
    ] = field(default=(), metadata=names("models", **POSITIONAL))
    against: Annotated[tuple[str, ...], "The same as further models without a flag."] = ()
    compile: Annotated[bool, "Time each model through torch.compile, too."] = False
    iterations: Annotated[tuple[int, ...], "Numbers of calls; each is timed separately."] = (5, 50)
    devices: Annotated[
        tuple[str, ...] | None, "Devices, as cpu,cuda. Default: all of this machine."
    ] = None
    batch: Annotated[int | None, "Rows of the input. Default: those of the captured input."] = None
    draw: Annotated[bool, "Write a figure of the latencies."] = True
    out: Path = Path("out/bench")


def run(config: BenchConfig, session: Session) -> dict[str, Any]:
    """Evaluate and time every model."""
    from chop.actions.latency import latency_figure, latency_table
    from chop.actions.records import write_csv
    from chop.cli.source import describe, example_of, find_source, load, load_graph
    from chop.cli.train_and_measure import measure
    from chop.cli.units import titled

    _check_devices(config.devices or ())
    others = [*dict.fromkeys([str(config.model), *config.others, *config.against])][1:]
    source, data, first = load(config, is_alone=not others)
    graphs = {source.name: first}
    for name in others:
        other = dataclasses.replace(config, model=name)
        graphs[name] = load_graph(other, find_source(other, is_alone=False), data)
    inputs = example_of(first, config.batch)
    for name, graph in graphs.items():
        _check_inputs(name, graph, inputs)
        if data is not None:
            measure(graph, data.few(graph), config, first)
    session.start_work()
    records = _time(config, session, graphs, inputs)
    rows = _compare(config, session, graphs, data, records)
    write_csv(session.folder / "models.csv", rows)
    if config.draw:
        latency_figure(records, session.folder / "latency.svg")
    session.console.table([titled(row) for row in rows], floatfmt=".4g", intfmt=",")
    session.console.say(f"\n{latency_table(records)}")
    timed = [asdict(record) for record in records]
    return {**describe(first, source), "models": rows, "latency": timed}


def _time(
    config: BenchConfig, session: Session, graphs: Mapping[str, MaseGraph], inputs: Any
) -> list[LatencyRecord]:
    import torch

    from chop.actions.latency import measure_latency

    models = {name: graph.model for name, graph in graphs.items()}
    compiled = {f"{name}, compiled": model for name, model in models.items() if config.compile}
    with session.console.progress("time"):
        return measure_latency(
            models | compiled,
            inputs,
            devices=config.devices,
            iterations=config.iterations,
            prepare=dict.fromkeys(compiled, torch.compile),
        )


def _compare(
    config: BenchConfig,
    session: Session,
    graphs: Mapping[str, MaseGraph],
    data: Data | None,
    records: list[LatencyRecord],
) -> list[dict[str, Any]]:
    """Return one row per model; the latency is that of the most calls, on the CPU if timed."""
    from chop.actions.model_size import model_size
    from chop.cli.train_and_measure import measure

    last = {r.program: r for r in reversed(records) if r.device == "cpu"} or {
        r.program: r for r in reversed(records)
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


def _check_devices(devices: Iterable[str]) -> None:
    import torch

    available = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    allowed = (*available, *(["cuda"] if len(available) > 1 else []))
    for name in devices:
        if name not in allowed:
            listed = ", ".join(available)
            raise UsageError(f"bench.devices: no device '{name}' here. Here: {listed}.")


def _check_inputs(name: str, graph: MaseGraph, inputs: Iterable[str]) -> None:
    """Raise unless the model accepts the inputs of the first one."""
    from chop.ir.trace.inputs import Signature

    accepted = Signature.of(graph.model).names
    unknown = [each for each in inputs if each not in accepted]
    if unknown:
        raise UsageError(
            f"bench.against: '{name}' has no input '{unknown[0]}'; models are timed on the same "
            f"inputs. It takes: {', '.join(accepted)}."
        )
