"""Training steps of six kinds of models on 2, 4 and 8 processes, against one process.

Every model of tests/distributed/split_jobs.py, as it is and after each change (MXINT8, packed
MXINT4, LoRA, pruned), runs one training step in every split: FSDP, pipelines, tensor parallelism,
and mixtures of them. A case is equal (outputs and gradients within rounding), refused (a clear
error of the planner), or wrong. The bytes that every process holds and sends are compared with
those that the plan predicts. The table goes to section "shard" of bench/results/right.json.

    python bench/shard_matrix.py [--workers N] [--models NAME ...] [--processes N ...]

Finished cases are kept in a folder (--state), so that an interrupted run resumes; cases of other
code are not used. With a selection nothing is recorded until all cases have run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

# This folder last, in every process: its graph.py is not the package.
sys.path.sort(key=lambda folder: folder == str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from distributed.split_jobs import CHANGES, MODELS, SPLITS, split_job
from measuring.code import code_hash, measured
from measuring.progress import Stopwatch
from measuring.record import save_section
from tabulate import tabulate
from torch.multiprocessing.spawn import ProcessRaisedException

from chop.actions.records import read_records
from chop.distributed.step_bytes import step_bytes
from chop.distributed.verify_plan import SplitRun, Verification, verify_plans
from chop.errors import ChopError

SECTION = "shard"
VERDICTS = ("equal", "refused", "wrong")


class Case(NamedTuple):
    """Model, change of its layers, and split."""

    model: str
    change: str
    split: str

    @property
    def processes(self) -> int:
        """Number of processes of the split."""
        shape, stages, _ = SPLITS[self.split]
        return stages * math.prod(shape)


CASES = [Case(*names) for names in itertools.product(MODELS, CHANGES, SPLITS)]


def main() -> int:
    """Run what is missing; 1 where a case is wrong or sends other bytes than predicted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1, help="groups of cases side by side")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir(), "shard_matrix"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    options.state.mkdir(parents=True, exist_ok=True)
    log = options.state / f"cases_{code_hash(measured('right', SECTION))}.jsonl"
    rows = [dict(row) for row in read_records(log)]
    selected = [
        case
        for case in CASES
        if case.model in options.models
        and case.change in options.changes
        and case.processes in options.processes
    ]
    watch = Stopwatch()
    for new in run(_missing(selected, rows), options.workers):
        rows += new
        with log.open("a") as opened:
            opened.writelines(json.dumps(row) + "\n" for row in new)
        report(new)
    results = {**counted(rows), "seconds_of_this_run": round(watch.seconds, 1)}
    print(tabulate(results["table"], "keys"))
    if not _missing(CASES, rows):
        print(save_section("right", SECTION, results))
    return int(results["wrong"] > 0 or results["other bytes"] > 0)


def _missing(cases: Sequence[Case], rows: Sequence[dict[str, Any]]) -> list[Case]:
    done = {(row["model"], row["change"], row["split"]) for row in rows}
    return [case for case in cases if case not in done]


def run(cases: Sequence[Case], workers: int) -> Iterator[list[dict[str, Any]]]:
    """Run the cases of a model on one number of processes in the same processes."""
    groups: dict[tuple[int, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.processes, case.model), []).append(case)
    largest_first = sorted(groups, reverse=True)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run_group, groups[name]) for name in largest_first]
        for future in as_completed(waiting):
            yield future.result()


def run_group(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return one row per case."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: dict[Case, dict[str, Any]] = {}
    jobs: dict[Case, SplitRun] = {}
    for case in cases:
        try:
            jobs[case] = split_job(*case)
        except ChopError as error:
            rows[case] = {"verdict": "refused", "reason": str(error)}
    try:
        results = verify_plans(list(jobs.values())) if jobs else []
        checks = zip(jobs.items(), results, strict=True)
        rows |= {case: compared(job, result) for (case, job), result in checks}
    except ProcessRaisedException:  # one case stops all: find it
        rows |= {case: _alone(job) for case, job in jobs.items()}
    return [{**case._asdict(), "processes": case.processes, **rows[case]} for case in cases]


def _alone(job: SplitRun) -> dict[str, Any]:
    """Return the row of a case that runs in processes of its own."""
    try:
        return compared(job, verify_plans([job])[0])
    except ProcessRaisedException as error:
        reason = str(error).strip().splitlines()[-1]
        is_clear = reason.startswith("chop.errors.")
        return {"verdict": "refused" if is_clear else "wrong", "reason": reason}


def compared(job: SplitRun, result: Verification) -> dict[str, Any]:
    """Return differences from one process, and bytes against those that are predicted."""
    stages = step_bytes(job.graph, job.split, has_exchange=False, is_first=True)
    devices = [stage for stage in stages for _ in range(job.plan.mesh.devices)]
    return {
        "verdict": "equal" if result.is_equal else "wrong",
        "output_difference": result.output_difference,
        "gradient_difference": result.gradient_difference,
        "held_bytes": list(result.parameter_bytes),
        "predicted_held_bytes": [each.parameters for each in devices],
        "sent_bytes": list(result.sent_bytes),
        "predicted_sent_bytes": [each.sent for each in devices],
    }


def has_other_bytes(row: dict[str, Any]) -> bool:
    """Return True if a process holds or sends other bytes than the plan predicts."""
    kinds = ("held_bytes", "sent_bytes")
    return "held_bytes" in row and any(row[kind] != row[f"predicted_{kind}"] for kind in kinds)


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print what is not as it should be."""
    verdicts = Counter(row["verdict"] for row in rows)
    print(rows[0]["model"], rows[0]["processes"], "processes:", dict(verdicts), flush=True)
    for row in rows:
        if row["verdict"] != "equal" or has_other_bytes(row):
            print("   ", json.dumps(row), flush=True)


def counted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums, a table by model and processes, and all cases."""
    verdicts = Counter(row["verdict"] for row in rows)
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["processes"]), []).append(row)
    differences = [row for row in rows if "output_difference" in row]
    return {
        "cases": len(rows),
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
        "other bytes": sum(map(has_other_bytes, rows)),
        "largest output difference": _largest(differences, "output_difference"),
        "largest gradient difference": _largest(differences, "gradient_difference"),
        "table": [_summary(*name, groups[name]) for name in sorted(groups)],
        "rows": sorted(rows, key=lambda row: CASES.index(Case(*(row[n] for n in Case._fields)))),
    }


def _largest(rows: Sequence[dict[str, Any]], name: str) -> float:
    return max((row[name] or 0.0 for row in rows), default=0.0)


def _summary(model: str, processes: int, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    verdicts = Counter(row["verdict"] for row in rows)
    return {
        "model": model,
        "processes": processes,
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
        "bytes as predicted": sum("held_bytes" in r and not has_other_bytes(r) for r in rows),
        "reasons": sorted({row["reason"] for row in rows if "reason" in row}),
    }


if __name__ == "__main__":
    sys.exit(main())
