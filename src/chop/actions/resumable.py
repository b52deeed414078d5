"""Measure a list of points, one record each; an interrupted sweep goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.records import (
    MeasurementRecord,
    append_record,
    find_record,
    read_records,
    write_csv,
)
from chop.log import get_logger

logger = get_logger(__name__)

Point = Mapping[str, Any]
"""What is measured: the fields that tell one measurement from another."""


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is, after a record."""

    done: int
    total: int
    seconds_left: float
    record: MeasurementRecord

    def __str__(self) -> str:
        return f"{self.done} of {self.total}, about {duration(self.seconds_left)} left"


def duration(seconds: float) -> str:
    """Seconds as a reader says them.

    >>> [duration(s) for s in (7.4, 130, 7330)]
    ['7 s', '2 min 10 s', '2 h 2 min']
    """
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def log_progress(progress: SweepProgress) -> None:
    """Say how far the sweep is."""
    logger.info("%s: %s", progress, progress.record)


def count_known(points: Sequence[Point], path: str | Path) -> int:
    """How many of `points` have a record in the file `path`."""
    before = read_records(path)
    return sum(find_record(before, point) is not None for point in points)


def run_sweep(
    points: Sequence[Point],
    measure: Callable[[Point], Mapping[str, Any]],
    path: str | Path,
    on_progress: Callable[[SweepProgress], None] = log_progress,
) -> list[MeasurementRecord]:
    """The records of `points`, in order: those in the file `path`, the rest measured and added.

    A record is the point, what `measure` gives for it and the `seconds` it took. The table is
    written beside the records, with the suffix .csv.
    """
    before = read_records(path)
    found = [find_record(before, point) for point in points]
    missing = [i for i, record in enumerate(found) if record is None]
    known = [float(r["seconds"]) for r in found if r is not None and "seconds" in r]
    for left, i in zip(range(len(missing) - 1, -1, -1), missing, strict=True):
        start = time.monotonic()
        measured = measure(points[i])
        seconds = time.monotonic() - start
        record = {**points[i], **measured, "seconds": round(seconds, 3)}
        append_record(path, record)
        found[i] = record
        known.append(seconds)
        mean = sum(known) / len(known)
        on_progress(SweepProgress(len(points) - left, len(points), left * mean, record))
    records = [record for record in found if record is not None]
    write_csv(Path(path).with_suffix(".csv"), records)
    return records
