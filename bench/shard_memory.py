"""Memory of a training step: bytes that the plan predicts, and bytes that processes hold.

Small models on 1, 2 and 4 gloo processes, in training mode. Held are parameters, gradients, states
of Adam, and everything alive at the end of the forward pass; all are counted exactly. The table
goes to section "shard memory" of bench/results/right.json.

    python bench/shard_memory.py [--models NAME ...] [--splits NAME ...]

With a selection nothing is recorded.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# This folder last, in every process: its graph.py is not the package.
sys.path.sort(key=lambda folder: folder == str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from distributed.memory_jobs import MODELS, SPLITS, memory_job
from measuring.record import save_section
from tabulate import tabulate

from chop.distributed.held_memory import HeldBytes, held_bytes, predicted_bytes
from chop.distributed.verify_plan import SplitRun, processes_of_run

SECTION = "shard memory"
LIMIT = 0.1
"""Largest relative difference of the predicted memory."""
PARTS = ("parameters", "states", "activations", "total")


def main() -> int:
    """Run the cases; 1 where a prediction differs by more than the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = measured([(model, split) for model in options.models for split in options.splits])
    shown = [{k: v for k, v in row.items() if not isinstance(v, dict)} for row in rows]
    print(tabulate(shown, "keys", floatfmt=".3f"))
    wrong = [row for row in rows if abs(row["total, ratio"] - 1) > LIMIT]
    results = {
        "limit": LIMIT,
        "cases": len(rows),
        "cases within the limit": len(rows) - len(wrong),
        "largest difference": max(abs(row["total, ratio"] - 1) for row in rows),
        "largest difference of activations": max(
            abs(row["activations, ratio"] - 1) for row in rows
        ),
        "rows": rows,
    }
    if len(rows) == len(MODELS) * len(SPLITS):
        print(save_section("right", SECTION, results))
    return int(bool(wrong))


def measured(cases: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return one row per case; cases on one number of processes run in the same processes."""
    jobs = {case: memory_job(*case) for case in cases}
    rows = {}
    for count in sorted({processes_of_run(job) for job in jobs.values()}):
        some = {case: job for case, job in jobs.items() if processes_of_run(job) == count}
        results = held_bytes(list(some.values()))
        for (case, job), held in zip(some.items(), results, strict=True):
            rows[case] = _row(*case, job, held)
    return [rows[case] for case in cases]


def _row(model: str, split: str, job: SplitRun, held: Sequence[HeldBytes]) -> dict[str, Any]:
    """Return the prediction beside the process that holds most."""
    most = max(held, key=lambda each: each.total).record()
    predicted = predicted_bytes(job)
    ratios = {f"{part}, ratio": predicted[part] / max(most[part], 1) for part in PARTS}
    return {
        "model": model,
        "split": split,
        "recomputed segments": len(job.plan.recomputed),
        **ratios,
        "held, bytes": most["total"],
        "peak, ratio": (job.plan.cost.activation_bytes) / max(most["peak"], 1),
        "predicted": dict(predicted),
        "held": most,
    }


if __name__ == "__main__":
    sys.exit(main())
