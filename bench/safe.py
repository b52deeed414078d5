"""Forged and mutated files of every kind that others send, read under limits.

python bench/safe.py --count 20000 [--processes 2] [--state FILE] [--kinds NAME …]

Each file is read in a forked process with 1 GB of extra memory and 10 s of CPU time, while Python's
audit events are recorded. Counted are files that made something run, files that went over the
limits, files that ended in an error that is not one of this package, and files that were read with
wrong shapes or as something else than they say. Verdicts are stored in FILE as they come, so that
an interrupted run resumes. The results go under "files" in bench/results/safe.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import record
from measuring.progress import Stopwatch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import file_kinds  # noqa: E402
from file_kinds import Job  # noqa: E402

SECTION = "files"
BY_HAND = "forged by hand"
Row = tuple[Job, str, str]


def stored(state: Path) -> dict[Job, Row]:
    """Return the verdicts of an interrupted run."""
    if not state.is_file():
        return {}
    lines = [line for line in state.read_text().splitlines(keepends=True) if line.endswith("\n")]
    rows = [json.loads(line) for line in lines]
    return {Job(kind, seed): (Job(kind, seed), word, told) for kind, seed, word, told in rows}


def judged(jobs: list[Job], state: Path, processes: int) -> Iterator[Row]:
    """Yield the verdict on each job; those in `state` are not judged again."""
    known = stored(state)
    yield from (known[job] for job in jobs if job in known)
    left = [job for job in jobs if job not in known]
    with state.open("a") as opened:
        for number, (job, word, detail) in enumerate(
            file_kinds.verdicts(left, processes=processes), 1
        ):
            opened.write(json.dumps([job.kind, job.seed, word, detail[:300]]) + "\n")
            if number % 500 == 0:
                opened.flush()
                print(f"{number} of {len(left)}", file=sys.stderr)
            yield job, word, detail


def table(rows: list[Row]) -> dict[str, Any]:
    """Return the counts of all verdicts: in total, and by kind."""
    kinds: dict[str, Counter[str]] = {}
    for job, word, _ in rows:
        kinds.setdefault(BY_HAND if job.seed is None else job.kind, Counter())[word] += 1
    by_kind = {
        kind: {"files": sum(words.values()), **{word: words[word] for word in file_kinds.WORDS}}
        for kind, words in kinds.items()
    }
    names = ("files", *file_kinds.WORDS)
    totals = {name: sum(row[name] for row in by_kind.values()) for name in names}
    return {"totals": totals, "by kind": by_kind}


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="random files")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", help="kinds of random files; default: all")
    parser.add_argument(
        "--state", type=Path, default=Path(tempfile.gettempdir(), "mase_safe.jsonl")
    )
    return parser.parse_args()


def main() -> int:
    """Write the section; return 1 if anything is wrong."""
    asked = options()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    watch = Stopwatch()
    jobs = file_kinds.jobs_of(asked.count, asked.kinds)
    jobs += [] if asked.kinds else file_kinds.forged_jobs()
    rows = list(judged(jobs, asked.state, asked.processes))
    seconds = round(watch.seconds, 1)
    results = {**table(rows), "seconds": seconds, "processes": asked.processes}
    if asked.kinds is None:
        record.save_section("safe", SECTION, results)
    print(json.dumps(results, indent=1))
    wrong = [(job, word, told) for job, word, told in rows if word in file_kinds.WRONG]
    for job, word, told in wrong:
        print(f"{job.kind} {job.seed}: {word}: {told[:300]}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
