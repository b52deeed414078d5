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
"""Sweep -> the labels of its accuracy before and after training."""


def sweep_curves(name: str, records: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the curves of a sweep: one for each variant and stage."""
    sweep = SWEEPS[name]
    own = [record for record in records if record["sweep"] == name]
    curves = []
    for variant in _variants(sweep, own):
        chosen = [r for r in own if all(r[k] == v for k, v in variant.items())]
        for stage, title in STAGES[name].items():
            label = " ".join([*map(str, variant.values()), title])
            curves.append(make_curve(label, chosen, sweep.axis, stage))
    return curves


def baseline_levels(name: str, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the accuracy before compression, averaged over seeds, if the records have it."""
    by_seed = {r["seed"]: r[BASELINE] for r in records if r["sweep"] == name and BASELINE in r}
    return {"uncompressed": statistics.fmean(by_seed.values())} if by_seed else {}


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
    """Draw a sweep's records; `levels` are accuracies to compare with, such as another model's.

    Default level: the accuracy before compression, if the records have it.
    """
    sweep = SWEEPS[name]
    check_sweep(list(records), f"draw_sweep '{name}'", ConfigError)
    curves = sweep_curves(name, records)
    if not any(curve.x for curve in curves):
        raise ConfigError(f"draw_sweep '{name}': none of {len(records)} records is of this sweep.")
    shown = title or f"Accuracy over {sweep.label}"
    compared = levels if levels is not None else baseline_levels(name, records)
    axes = Axes(shown, sweep.label, "accuracy", compared, log_x=name == "lora_rank")
    return draw_curves(path, curves, axes)
