"""The sweeps: what each varies, and how a point of it changes a graph.

To add one: a function that changes a graph as a point says, and a row of `SWEEPS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.fixed_point import fitted_fixed_point, observe_ranges, uniform_fixed_point
from chop.actions.records import Record
from chop.actions.resumable import Point, Progress, log_progress, run_sweep
from chop.actions.subject import Subject
from chop.arguments import MANY, NONE, PATH, an, takes
from chop.ir.graph import MaseGraph
from chop.passes import (
    insert_lora_adapter_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.registry import Registry

BEFORE, AFTER = "before", "after"
"""Fields of a record: the accuracy once compressed, and once trained after that."""
Change = Callable[[MaseGraph, Subject, Point], Mapping[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """A family of measurements.

    `axis` is the field on the x axis and `label` its name; `values` are the ones it takes;
    `variants` are other fields that vary, a curve for each; `change` compresses a graph as a point
    says and gives what is to be recorded of it.
    """

    name: str
    axis: str
    label: str
    values: Sequence[float]
    variants: Mapping[str, Sequence[Any]]
    change: Change

    def points(self, seeds: Sequence[int], values: Sequence[float] | None = None) -> list[Point]:
        """Every combination of seed, variant and value."""
        chosen = self.values if values is None else values
        axes = {**self.variants, "seed": seeds, self.axis: chosen}
        combined = itertools.product(*axes.values())
        return [{"sweep": self.name, **dict(zip(axes, each, strict=True))} for each in combined]


def measure(subject: Subject, point: Point) -> dict[str, Any]:
    """What the sweep that `point` is of measures there."""
    return measure_change(subject, point, SWEEPS[point["sweep"]].change)


def measure_change(subject: Subject, point: Point, change: Change) -> dict[str, Any]:
    """Accuracy of a graph after `change`, before and after it is trained again."""
    graph = subject.graph(point["seed"])
    info = change(graph, subject, point)
    before = subject.evaluate(graph)
    subject.train(graph, point["seed"])
    return {BEFORE: before, AFTER: subject.evaluate(graph), **info}


@takes(subject=an(Subject), directory=PATH, seeds=MANY, values=MANY | NONE)
def sweep(
    name: str,
    subject: Subject,
    directory: str | Path,
    seeds: Sequence[int] = (0,),
    values: Sequence[float] | None = None,
    on_progress: Callable[[Progress], None] = log_progress,
) -> list[Record]:
    """Run the sweep `name`; records and table go to `<directory>/<name>.jsonl` and `.csv`.

    Records that are there are not measured again. `chop.report.draw_sweep` draws them.
    """
    points = SWEEPS[name].points(seeds, values)
    path = Path(directory) / f"{SWEEPS.canonical(name)}.jsonl"
    return run_sweep(points, lambda point: measure(subject, point), path, on_progress)


# -- what a point does to a graph ---------------------------------------------------------------


def _quantize_width(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    width = int(point["width"])
    if point["split"] == "half":
        args = uniform_fixed_point(width, width // 2)
    else:
        args = fitted_fixed_point(observe_ranges(graph, subject.batches()), width)
    quantize_transform_pass(graph, args)
    return {}


FRACTION_BITS = 4
"""Held while integer bits vary."""
INTEGER_BITS = 5
"""Held while fraction bits vary; the sign is one of them."""


def _quantize_integer_bits(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    bits = int(point["integer_bits"])
    quantize_transform_pass(graph, uniform_fixed_point(bits + FRACTION_BITS, FRACTION_BITS))
    return {"frac_width": FRACTION_BITS}


def _quantize_fraction_bits(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    bits = int(point["fraction_bits"])
    quantize_transform_pass(graph, uniform_fixed_point(INTEGER_BITS + bits, bits))
    return {"integer_bits": INTEGER_BITS}


def _prune(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    weight = {"sparsity": point["sparsity"], "method": point["method"], "scope": "local"}
    prune_transform_pass(graph, {"weight": weight, "seed": point["seed"]})
    return {}


def _adapt(graph: MaseGraph, subject: Subject, point: Point) -> Mapping[str, Any]:
    rank = int(point["rank"])
    saved = tuple(point.get("modules_to_save", ()))
    args = {"rank": rank, "alpha": 2.0 * rank, "modules_to_save": saved}
    _, info = insert_lora_adapter_transform_pass(graph, args)
    return {name: info[name] for name in ("trainable", "total", "share")}


SWEEPS: Registry[Sweep] = Registry("sweep")
for _sweep in (
    Sweep(
        "fixed_point_width",
        "width",
        "fixed-point width (bits)",
        (4, 6, 8, 12, 16, 24, 32),
        {"split": ("half", "fitted")},
        _quantize_width,
    ),
    Sweep(
        "integer_bits",
        "integer_bits",
        "integer bits, sign included",
        tuple(range(1, 11)),
        {},
        _quantize_integer_bits,
    ),
    Sweep(
        "fraction_bits",
        "fraction_bits",
        "fraction bits",
        (0, 1, 2, 3, 4, 5, 6, 8, 10),
        {},
        _quantize_fraction_bits,
    ),
    Sweep(
        "sparsity",
        "sparsity",
        "share of weights pruned",
        tuple(i / 10 for i in range(1, 10)),
        {"method": ("random", "l1-norm")},
        _prune,
    ),
    Sweep("lora_rank", "rank", "rank of the adapters", (1, 2, 4, 8, 16), {}, _adapt),
):
    SWEEPS.register(_sweep.name, _sweep)
