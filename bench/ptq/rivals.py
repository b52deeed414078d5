"""What the scripts of other tools share: every scheme and seed that is missing, one row each."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rows import Row, Rows
from schemes import SCHEMES, Scheme
from subjects import CALIBRATION, SEEDS, Subject, add_options, subjects

RESULTS = Path(__file__).parents[1] / "results" / "ptq_rivals.json"
Quantise = Callable[[Subject, Scheme, int], Any]
"""A model from a subject, a scheme and the seed of the calibration data."""
Reference = Callable[[], list[Any]]


def run(package: str, methods: dict[str, Quantise], description: str) -> None:
    """Quantise by every method and measure; an error is kept as the row's result."""
    args = _arguments(package, description)
    rows = Rows(args.out)
    for subject in subjects(args):
        reference = functools.cache(lambda s=subject: s.reference(s.load()))
        for seed, name, method in _wanted(args, methods):
            row = {
                "tool": f"{package} {importlib.metadata.version(package)}",
                "subject": subject.name,
                "scheme": name,
                "method": method,
                "seed": seed,
                "held": subject.held,
                "calibration": CALIBRATION[subject.name],
            }
            work = _Work(subject, SCHEMES[name], seed, methods[method], reference)
            rows.make(row, work.row)
            save(package, list(rows.found.values()))


def save(package: str, rows: list[Row]) -> None:
    """Write a tool's rows, and where they come from, into bench/results/ptq_rivals.json."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    packages = (package, "torch", "transformers", "numpy")
    known[package] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", *sys.argv]),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count()},
        "results": rows,
    }
    draft = RESULTS.with_name(f".{RESULTS.name}.{os.getpid()}")
    draft.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    draft.replace(RESULTS)


def _wanted(args: argparse.Namespace, methods: Iterable[str]) -> Iterable[tuple[int, str, str]]:
    chosen = args.methods or list(methods)
    return [(s, n, m) for s in args.seeds for n in args.schemes for m in chosen]


class _Work:
    def __init__(
        self, subject: Subject, scheme: Scheme, seed: int, quantise: Quantise, reference: Reference
    ) -> None:
        self.subject, self.scheme, self.seed = subject, scheme, seed
        self.quantise, self.reference = quantise, reference

    def row(self) -> dict[str, Any]:
        """What was measured, or why nothing could be."""
        try:
            model = self.quantise(self.subject, self.scheme, self.seed)
            return {**self.subject.measured(model, self.reference())}
        except (Exception, SystemExit):  # another tool may fail in any way: a result too
            return {"error": traceback.format_exc(limit=-3)}


def _arguments(package: str, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    add_options(parser)
    parser.add_argument("--out", type=Path, default=Path(f"out/ptq/{package}.jsonl"))
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--methods", nargs="*")
    return parser.parse_args()
