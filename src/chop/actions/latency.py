"""Latency of models: the first call and the median, as records, a table and a figure.

Calls of the programs alternate, so that a busy moment of the machine affects all of them.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from chop.arguments import an, check
from chop.errors import ConfigError, MissingDependencyError
from chop.files import make_folder, write_whole
from chop.ir.graph import MaseGraph

ITERATIONS = (5, 50, 200)
"""Default numbers of calls."""
Program = Callable[[], Any]


@dataclass(frozen=True)
class LatencyRecord:
    """Seconds per call of one program; `low` and `high` are the quartiles around the median.

    `with_first`: mean of all calls, including the first, which compiles. `speedup` and
    `speedup_with_first`: relative to the first program.
    """

    device: str
    iterations: int
    program: str
    first_call: float
    median: float
    low: float
    high: float
    with_first: float
    speedup: float = 1.0
    speedup_with_first: float = 1.0


def measure_latency(
    models: Mapping[str, MaseGraph | torch.nn.Module],
    inputs: Mapping[str, torch.Tensor],
    *,
    devices: Sequence[str] | None = None,
    iterations: Sequence[int] = ITERATIONS,
    prepare: Mapping[str, Callable[[torch.nn.Module], Any]] | None = None,
) -> list[LatencyRecord]:
    """Return a record for each model, device and number of calls, in evaluation mode.

    The first model is the baseline. `prepare[name]` turns the copy of a model on a device into the
    program to call, as torch.compile does.
    """
    if not models:
        raise ConfigError("measure_latency: no models given.")
    kind = an(torch.nn.Module, "a torch.nn.Module") | an(MaseGraph)
    for name, model in models.items():
        check(f"measure_latency: models['{name}']", kind, model)
    _check_counts(iterations, devices or ())
    places = devices or ("cpu", *(["cuda"] if torch.cuda.is_available() else []))
    records: list[LatencyRecord] = []
    for device in places:
        for count in iterations:
            programs = _programs(models, inputs, device, prepare or {})
            records += _measure(programs, device, count)
    return records


def _check_counts(iterations: Sequence[int], devices: Sequence[str]) -> None:
    for count in iterations:
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"measure_latency: iterations has {count!r}. Allowed: 1 or more.")
    for device in devices:
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ConfigError(
                f"measure_latency: no device is called '{device}'. Allowed: cpu, cuda, cuda:0 …"
            ) from error


def _programs(
    models: Mapping[str, Any],
    inputs: Mapping[str, torch.Tensor],
    device: str,
    prepare: Mapping[str, Callable[[torch.nn.Module], Any]],
) -> dict[str, Program]:
    moved = {k: v.to(device) for k, v in inputs.items()}
    programs: dict[str, Program] = {}
    torch._dynamo.reset()  # each count has a first call
    for name, model in models.items():
        plain = model.model if isinstance(model, MaseGraph) else model
        own = copy.deepcopy(plain).to(device).eval()
        called = prepare.get(name, lambda m: m)(own)
        programs[name] = lambda called=called: called(**moved)  # type: ignore[misc]
    return programs


def _measure(programs: Mapping[str, Program], device: str, count: int) -> list[LatencyRecord]:
    with torch.no_grad():
        first = {name: timed(program, device) for name, program in programs.items()}
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(count):
            for name, program in programs.items():
                times[name].append(timed(program, device))
    records = [_record(device, count, name, first[name], times[name]) for name in programs]
    base = records[0]
    return [
        dataclasses.replace(
            r,
            speedup=base.median / r.median,
            speedup_with_first=base.with_first / r.with_first,
        )
        for r in records
    ]


def timed(program: Program, device: str) -> float:
    """Return the seconds of one call, including its work on the device."""
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    synchronize()
    start = time.perf_counter()
    program()
    synchronize()
    return time.perf_counter() - start


def _record(device: str, count: int, name: str, first: float, times: list[float]) -> LatencyRecord:
    quartiles = statistics.quantiles(times, n=4) if count > 1 else [times[0]] * 3
    low, median, high = quartiles[0], statistics.median(times), quartiles[2]
    with_first = (first + sum(times)) / (count + 1)
    return LatencyRecord(device, count, name, first, median, low, high, with_first)


def latency_table(records: Sequence[LatencyRecord]) -> str:
    """Return the records as text, with times in milliseconds."""
    rows = [
        (
            r.device,
            r.iterations,
            r.program,
            f"{r.first_call * 1e3:.1f}",
            f"{r.median * 1e3:.2f}",
            f"{r.low * 1e3:.2f} to {r.high * 1e3:.2f}",
            f"{r.speedup:.2f}",
            f"{r.speedup_with_first:.2f}",
        )
        for r in records
    ]
    times = ("first call (ms)", "median (ms)", "quartiles (ms)")
    speedups = ("speed-up (times)", "with first call (times)")
    return tabulate(rows, headers=("device", "calls", "program", *times, *speedups))


def latency_figure(records: Sequence[LatencyRecord], path: str | Path) -> Path:
    """Draw the median with quartiles for each device and count; store the data as JSON, too."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "latency_figure: matplotlib is not installed. pip install matplotlib"
        ) from error
    groups = list(dict.fromkeys((r.device, r.iterations) for r in records))
    programs = list(dict.fromkeys(r.program for r in records))
    figure = Figure(figsize=(1.6 + 1.5 * len(groups), 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(programs)
    for i, program in enumerate(programs):
        own = [r for r in records if r.program == program]
        at = [
            groups.index((r.device, r.iterations)) + (i - len(programs) / 2 + 0.5) * width
            for r in own
        ]
        spread = [[(r.median - r.low) * 1e3 for r in own], [(r.high - r.median) * 1e3 for r in own]]
        axes.bar(at, [r.median * 1e3 for r in own], width, yerr=spread, capsize=2, label=program)
    axes.set_xticks(range(len(groups)), [f"{device}\n{count} calls" for device, count in groups])
    axes.set_ylabel("median time of a call (ms)")
    axes.set_yscale("log")
    best = max(records, key=lambda r: r.speedup)
    axes.set_title(f"{best.program} on {best.device}: {best.speedup:.2f} times as fast")
    axes.legend()
    target = Path(path)
    make_folder(target.parent)
    figure.savefig(target)
    data = [dataclasses.asdict(r) for r in records]
    write_whole(target.with_suffix(".json"), json.dumps(data, indent=1) + "\n")
    return target
