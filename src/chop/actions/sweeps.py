"""Sweeps: the quantity that each varies, and the change of a graph at a point.

To add one, put a function that changes a graph for a point under `@declare_sweep`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.fixed_point import fitted_fixed_point, observe_ranges, uniform_fixed_point
from chop.actions.records import MeasurementRecord
from chop.actions.resumable import Point, SweepProgress, log_progress, run_sweep
from chop.actions.study_subject import Subject
from chop.arguments import MANY, NEW_FOLDER, NONE, an, takes
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes import (
    insert_lora_adapter_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.registry import Registry

BEFORE, AFTER = "before", "after"
"""Fields of a record: accuracy after compression, and after training that follows."""
BASELINE = "baseline"
"""Field of a record: accuracy of the original model."""
Change = Callable[[MaseGraph, Subject, Point], Mapping[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """A family of measurements.

    `axis`: field on the x axis; `label`: its title; `values`: its default values; `variants`: other
    fields that vary, one curve each; `change`: compresses a graph for a point and returns fields
    for the record.
    """

    name: str
    axis: str
    label: str
    values: Sequence[float]
    variants: Mapping[str, Sequence[Any]]
    change: Change

    def points(self, seeds: Sequence[int], values: Sequence[float] | None = None) -> list[Point]:
        """Return every combination of seed, variant and value."""
        chosen = self.values if values is None else values
        is_count = all(isinstance(value, int) for value in self.values)
        if is_count and any(value % 1 for value in chosen):
            listed = ", ".join(f"{value:g}" for value in chosen)
            raise ConfigError(f"sweep.values: {self.name} takes whole numbers, got {listed}.")
        axes = {**self.variants, "seed": seeds, self.axis: chosen}
        combined = itertools.product(*axes.values())
        return [{"sweep": self.name, **dict(zip(axes, each, strict=True))} for each in combined]


SWEEPS: Registry[Sweep] = Registry("sweep")
"""Every sweep by its name."""


def declare_sweep(
    name: str,
    axis: str,
    label: str,
    values: Sequence[float],
    variants: Mapping[str, Sequence[Any]] | None = None,
) -> Callable[[Change], Change]:
    """Register a function that changes a graph as the sweep `name`; see `Sweep`."""

    def add(change: Change) -> Change:
        SWEEPS.register(name, Sweep(name, axis, label, values, variants or {}, change))
        return change

    return add


def measure(subject: Subject, point: Point) -> dict[str, Any]:
    """Measure the sweep of `point` at `point`."""
    return measure_change(subject, point, SWEEPS[point["sweep"]].change)


def measure_change(subject: Subject, point: Point, change: Change) -> dict[str, Any]:
    """Return the accuracy of a graph after `change`, before and after training."""
    graph = subject.graph(point["seed"])
    info = change(graph, subject, point)
    before = subject.evaluate(graph)
    subject.train(graph, point["seed"])
    return {BEFORE: before, AFTER: subject.evaluate(graph), **info}


@takes(subject=an(Subject), directory=NEW_FOLDER, seeds=MANY, values=MANY | NONE)
def sweep(
    name: str,
    subject: Subject,
    directory: str | Path,
    seeds: Sequence[int] = (0,),
    values: Sequence[float] | None = None,
    on_progress: Callable[[SweepProgress], None] = log_progress,
) -> list[MeasurementRecord]:
    """Run the sweep `name`; write records and table to `<directory>/<name>.jsonl` and `.csv`.

    Existing records are not measured again. `chop.report.draw_sweep` draws them.
    """
    points = SWEEPS[name].points(seeds, values)
    baseline = functools.cache(lambda seed: subject.evaluate(subject.graph(seed)))
    path = Path(directory) / f"{SWEEPS.canonical(name)}.jsonl"

    def measured(point: Point) -> dict[str, Any]:
        return {**measure(subject, point), BASELINE: baseline(point["seed"])}

    return run_sweep(points, measured, path, on_progress)


@declare_sweep(
    "fixed_point_width",
    "width",
    "fixed-point width (bits)",
    (4, 6, 8, 12, 16, 24, 32),
    {"split": ("half", "fitted")},
)
def _quantize_width(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    width = int(point["width"])
    if point["split"] == "half":
        args = uniform_fixed_point(width, width // 2)
    else:
        args = fitted_fixed_point(observe_ranges(graph, subject.batches()), width)
    quantize_transform_pass(graph, args)
    return {}


FRACTION_BITS = 4
"""Fractional bits while integer bits vary."""
INTEGER_BITS = 5
"""Integer bits, with the sign, while fractional bits vary."""


@declare_sweep("integer_bits", "integer_bits", "integer bits, sign included", tuple(range(1, 11)))
def _quantize_integer_bits(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    bits = int(point["integer_bits"])
    quantize_transform_pass(graph, uniform_fixed_point(bits + FRACTION_BITS, FRACTION_BITS))
    return {"frac_width": FRACTION_BITS}


@declare_sweep("fraction_bits", "fraction_bits", "fraction bits", (0, 1, 2, 3, 4, 5, 6, 8, 10))
def _quantize_fraction_bits(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    bits = int(point["fraction_bits"])
    quantize_transform_pass(graph, uniform_fixed_point(INTEGER_BITS + bits, bits))
    return {"integer_bits": INTEGER_BITS}


@declare_sweep(
    "sparsity",
    "sparsity",
    "share of weights pruned",
    tuple(i / 10 for i in range(1, 10)),
    {"method": ("random", "l1-norm")},
)
def _prune(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    weight = {"sparsity": point["sparsity"], "method": point["method"], "scope": "local"}
    prune_transform_pass(graph, {"weight": weight, "seed": point["seed"]})
    return {}


@declare_sweep("lora_rank", "rank", "rank of the adapters", (1, 2, 4, 8, 16))
def _adapt(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    rank = int(point["rank"])
    saved = tuple(point.get("modules_to_save", ()))
    args = {"rank": rank, "alpha": 2.0 * rank, "modules_to_save": saved}
    _, info = insert_lora_adapter_transform_pass(graph, args)
    return {name: info[name] for name in ("trainable", "total", "share")}
