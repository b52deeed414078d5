"""How many random models reach RTL that equals PyTorch, and how many are refused or wrong.

    python bench/right.py --models 5000 --workers 2 [--seed-start 0] [--work out/right]

Each model is drawn from its seed (layers, formats, parallelism; tests/hw/random_models.py, and for
odd seeds tests/hw/branching_models.py, whose paths part and join). It is lowered and compared:
PyTorch in double precision = exact reference = RTL under stalls after a reset in the middle, at
full rate, with a slow source, with one beat at a time, with bursts and with slow sinks. Or it is
refused with a reason. A design that stops counts as a deadlock. An interrupted run resumes:
findings are stored in the folder --work, in a file for each version of the code.
Needs Verilator and g++. Writes the section `hardware` of bench/results/right.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measuring.progress import Stopwatch
from measuring.record import save_section

from chop import toolchain

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "hw"), str(TESTS)]
from hardware_fuzz import BATCH, Finding, counts, fuzz  # noqa: E402

FAULTS = ("wrong", "deadlock")
"""Outcomes that fail the run."""
CHUNK = BATCH
"""Seeds that a worker takes at once, and that an interruption loses."""


def main() -> None:
    """Run the missing seeds, then write the counts."""
    args = _arguments()
    wanted = range(args.seed_start, args.seed_start + args.models)
    args.work.mkdir(parents=True, exist_ok=True)
    kept = args.work / f"findings-{_version()}.jsonl"
    known = _kept(kept)
    missing = [seed for seed in wanted if seed not in known]
    watch = Stopwatch()
    for number, findings in enumerate(_run(missing, args.workers), 1):
        _keep(kept, findings)
        wrong = [f"{f.seed}: {f.reason}" for f in findings if f.outcome in FAULTS]
        print(
            f"{min(number * CHUNK, len(missing))} of {len(missing)}", *wrong, sep="\n", flush=True
        )
    seconds = watch.seconds
    found = _kept(kept)
    results = {
        "seeds": [wanted.start, wanted.stop],
        "workers": args.workers,
        "models_of_this_run": len(missing),
        "seconds_of_this_run": round(seconds, 1),
        "worker_seconds_per_model": round(args.workers * seconds / max(len(missing), 1), 2),
        "verilator": toolchain.verilator().version(),
        **counts(found[seed] for seed in wanted),
    }
    print(json.dumps(results, indent=2))
    print(save_section("right", "hardware", results))
    sys.exit(1 if results["wrong"] or results["deadlocks"] else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed-start", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("out/right"))
    return parser.parse_args()


def _version() -> str:
    """Return a digest of all files that decide what becomes of a seed."""
    files = [
        p for p in (TESTS.parent / "src").rglob("*") if p.suffix in (".py", ".sv", ".cpp", ".h")
    ]
    files += [*TESTS.glob("hw/*_models.py"), TESTS / "hw" / "hardware_fuzz.py"]
    files += TESTS.glob("hw/rtl_batch.*")
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(TESTS.parent)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _run(seeds: list[int], workers: int) -> Iterator[list[Finding]]:
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    # fresh processes: a forked child of a program that has used torch's threads may hang
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_fuzz, chunks)


def _fuzz(seeds: list[int]) -> list[Finding]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return fuzz(seeds, Path(folder))


def _keep(path: Path, findings: list[Finding]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(vars(finding)) + "\n" for finding in findings)


def _kept(path: Path) -> dict[int, Finding]:
    """By seed; a last line that was cut off is dropped, and its seed run again."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    told: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
    return {each["seed"]: Finding(**each) for each in told}


if __name__ == "__main__":
    main()
