"""Table of the kinds of files that others send, and the runner that judges forged ones.

To add kinds, write a module with any of these names and add the module to `MODULES`:

- `KINDS: dict[str, Kind]`: files that a random generator forges;
- `forged_files() -> list[Forged]`: files forged by hand, each with the error that it must end in;
- `warm_up()`: read a valid file of each kind, so that what reading imports is imported.

Every file is read in a forked process with the limits of `limited.LIMITS`, while Python's audit
events are recorded. The words of a verdict are below; those of `WRONG` must never occur.
"""

from __future__ import annotations

import functools
import importlib
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forgeries
import limited

from chop.errors import ChopError

MODULES = ("mutations", "forged_folders", "forged_sizes", "gguf_files", "onnx_files")
MODULES += ("compressed_files", "npz_files", "study_folders")
"""Modules that have kinds of files."""

EQUAL, REFUSED, FAITHFUL = "equal", "refused", "as it says"
OTHER, RAW, EXECUTED = "something else", "raw", "executed"
WRONG_SHAPES = "accepted with wrong shapes"
WRONG = (EXECUTED, limited.OVER, RAW, WRONG_SHAPES, OTHER)
"""Verdicts that must not occur."""
WORDS = (EQUAL, REFUSED, FAITHFUL, *WRONG)

Judge = Callable[[Path, random.Random], str]
"""Write a forged file into a folder and read it; return one of `WORDS`, or raise."""


@dataclass(frozen=True)
class Kind:
    """A kind of random files: how one is judged, and its share of a run relative to the others."""

    judge: Judge
    share: float


@dataclass(frozen=True)
class Forged:
    """A file forged by hand: reading it must raise a ChopError that matches `words`."""

    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    words: str


class Executed(BaseException):
    """Something ran."""


@dataclass(frozen=True)
class Job:
    """One file to judge: number `seed` of a kind, or a file forged by hand if `seed` is None."""

    kind: str
    seed: int | None = None


# -- the table -----------------------------------------------------------------------------------


def _modules() -> list[Any]:
    return [importlib.import_module(name) for name in MODULES]


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return the kinds of random files of all modules."""
    found: dict[str, Kind] = {}
    for module in _modules():
        own = getattr(module, "KINDS", {})
        assert found.keys().isdisjoint(own), f"{module.__name__}: a kind is there twice"
        found |= own
    return found


@functools.cache
def forged_files() -> dict[str, Forged]:
    """Return the files forged by hand of all modules, by name."""
    rows = [r for m in _modules() if hasattr(m, "forged_files") for r in m.forged_files()]
    found = {row.name: row for row in rows}
    assert len(found) == len(rows), "two files forged by hand have one name"
    return found


@functools.cache
def warm_up() -> None:
    """Read valid files, so that reading forged ones imports and compiles nothing new."""
    for module in _modules():
        if hasattr(module, "warm_up"):
            module.warm_up()


def jobs_of(count: int, chosen: Iterable[str] | None = None) -> list[Job]:
    """Return the jobs of a run of `count` random files, each kind by its share."""
    picked = {k: v for k, v in kinds().items() if chosen is None or k in set(chosen)}
    whole = sum(kind.share for kind in picked.values())
    counts = {name: max(1, round(count * kind.share / whole)) for name, kind in picked.items()}
    return [Job(name, seed) for name, number in counts.items() for seed in range(number)]


def forged_jobs() -> list[Job]:
    """Return the jobs of the files forged by hand."""
    return [Job(name) for name in forged_files()]


# -- one file ------------------------------------------------------------------------------------


def judge(job: Job) -> tuple[str, str]:
    """Return the verdict on one file: a word of `WORDS`, and details."""
    with tempfile.TemporaryDirectory(prefix="forged.") as scratch:
        folder = Path(scratch, "one")
        folder.mkdir()
        with forgeries.listening() as heard:
            found, detail = _read(job, folder)
        ran = [event for event in heard if _is_harm(event, folder)]
    return (EXECUTED, str(ran)) if ran else (found, detail)


def _read(job: Job, folder: Path) -> tuple[str, str]:
    try:
        if job.seed is None:
            return _read_forged(forged_files()[job.kind], folder)
        return kinds()[job.kind].judge(folder, random.Random(f"{job.kind}/{job.seed}")), ""
    except Executed as error:
        return EXECUTED, str(error)
    except Exception as error:  # the very thing that is looked for
        told = f"{type(error).__name__}: {error}"
        if limited.ran_out_of_memory(error):
            return limited.OVER, f"memory: {told}"
        return (REFUSED if isinstance(error, ChopError) else RAW), told


def _read_forged(row: Forged, folder: Path) -> tuple[str, str]:
    row.write(folder)
    try:
        row.read(folder)
    except ChopError as error:
        if limited.ran_out_of_memory(error):
            raise
        said = str(error)
        is_plain = re.search(row.words, said) is not None and "\n" not in said
        return (REFUSED, said) if is_plain else (RAW, f"expected {row.words!r}: {said}")
    return OTHER, "it was accepted"


def _is_harm(event: str, folder: Path) -> bool:
    """Return whether an event is more than a file of the scratch folder that is written."""
    if str(folder) in event or event.startswith("open"):
        return False
    return not event.startswith(("os.rename", "os.remove", "os.mkdir", "os.rmdir", "compile"))


# -- a run ---------------------------------------------------------------------------------------


def verdicts(jobs: list[Job], *, processes: int = 1) -> Iterator[tuple[Job, str, str]]:
    """Yield each job with its verdict and details."""
    forgeries.hear_events()
    warm_up()
    for number, (word, detail) in limited.run_all(jobs, judge, processes=processes):
        yield jobs[number], word, detail


def run(count: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Judge `count` random files; return counts by kind and word, and lines on what was wrong."""
    found: dict[str, Counter[str]] = {name: Counter() for name in kinds()}
    wrong = []
    for job, word, detail in verdicts(jobs_of(count)):
        found[job.kind][word] += 1
        if word in WRONG:
            wrong.append(f"{job.kind} {job.seed}: {word}: {detail}")
    return found, wrong
