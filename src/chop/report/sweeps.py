"""Figures of the sweeps: a curve for each variant, before and after training."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.actions.readers import check_sweep
from chop.actions.sweeps import AFTER, BASELINE, BEFORE, SWEEPS, Sweep
from chop.errors import ConfigError
from chop.report.curves import Axes, Curve, draw_curves, make_curve

STAGES: dict[str, dict[str, str]] = {
    "fixed_point_width": {BEFORE: "PTQ", AFTER: "QAT"},
    "integer_bits": {BEFORE: "PTQ", AFTER: "QAT"},
    "fraction_bits": {BEFORE: "PTQ", AFTER: "QAT"},
    "sparsity": {BEFORE: "pruned", AFTER: "pruned and fine-tuned"},
    "lora_rank": {AFTER: "LoRA"},
}
"""What the accuracy before and after training is called in each sweep."""


def sweep_curves(name: str, records: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curves of a sweep: every variant, at every stage that has a name."""
    sweep = SWEEPS[name]
    own = [record for record in records if record["sweep"] == name]
    curves = []
    for variant in _variants(sweep, own):
        chosen = [r for r in own if all(r[k] == v for k, v in variant.items())]
        for stage, called in STAGES[name].items():
            label = " ".join([*map(str, variant.values()), called])
            curves.append(make_curve(label, chosen, sweep.axis, stage))
    return curves


def baseline_levels(name: str, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The accuracy before compression, where the records have it: their mean over the seeds."""
    found = {r["seed"]: r[BASELINE] for r in records if r["sweep"] == name and BASELINE in r}
    return {"uncompressed": statistics.fmean(found.values())} if found else {}


def _variants(sweep: Sweep, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    combined = itertools.product(*sweep.variants.values())
    named = [dict(zip(sweep.variants, each, strict=True)) for each in combined]
    return [v for v in named if any(all(r[k] == x for k, x in v.items()) for r in records)]


def draw_sweep(
    name: str,
    records: Sequence[Mapping[str, Any]],
    path: str | Path,
    title: str | None = None,
    levels: Mapping[str, float] | None = None,
) -> list[Path]:
    """Draw a sweep's records; `levels` are accuracies to compare with, such as the float model's.

    Without a title the figure's states the best result and where it is.
    """
    sweep = SWEEPS[name]
    check_sweep(list(records), f"draw_sweep '{name}'", ConfigError)
    curves = sweep_curves(name, records)
    if not any(curve.x for curve in curves):
        raise ConfigError(f"draw_sweep '{name}': none of {len(records)} records is of this sweep.")
    finding = title or _finding(curves, sweep)
    axes = Axes(finding, sweep.label, "accuracy", levels, log_x=name == "lora_rank")
    return draw_curves(path, curves, axes)


def _finding(curves: Sequence[Curve], sweep: Sweep) -> str:
    rows = [row for curve in curves for row in curve.rows]
    best = max(rows, key=lambda row: row["mean"])
    place = f"{sweep.axis.replace('_', ' ')} {best['x']:g}"
    return f"{best['curve']} is best: {best['mean']:.4f} at {place}"
