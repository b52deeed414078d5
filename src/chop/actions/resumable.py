"""Measurement of a list of points, one record each; an interrupted sweep resumes."""

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
"""Fields that identify a measurement."""


@dataclass(frozen=True)
class SweepProgress:
    """Progress of a sweep, after a record."""

    done: int
    total: int
    seconds_left: float
    record: MeasurementRecord

    def __str__(self) -> str:
        return f"{self.done} of {self.total}, about {duration(self.seconds_left)} left"


def duration(seconds: float) -> str:
    """Return seconds as readable text.

    >>> [duration(s) for s in (7.4, 130, 7330)]
    ['7 s', '2 min 10 s', '2 h 2 min']
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def log_progress(progress: SweepProgress) -> None:
    """Log the progress of the sweep."""
    logger.info("%s: %s", progress, progress.record)


def count_recorded(points: Sequence[Point], path: str | Path) -> int:
    """Return the number of `points` that have a record in the file `path`."""
    before = read_records(path)
    return sum(find_record(before, point) is not None for point in points)


def run_sweep(
    points: Sequence[Point],
    measure: Callable[[Point], Mapping[str, Any]],
    path: str | Path,
    on_progress: Callable[[SweepProgress], None] = log_progress,
) -> list[MeasurementRecord]:
    """Return the records of `points` in order; points without a record in `path` are measured.

    A record holds the point, the result of `measure` and its `seconds`. A table of all records is
    written to the same path with the suffix .csv.
    """
    before = read_records(path)
    records = [find_record(before, point) for point in points]
    missing = [i for i, record in enumerate(records) if record is None]
    times = [float(r["seconds"]) for r in records if r is not None and "seconds" in r]
    for left, i in zip(range(len(missing) - 1, -1, -1), missing, strict=True):
        start = time.monotonic()
        measured = measure(points[i])
        seconds = time.monotonic() - start
        record = {**points[i], **measured, "seconds": round(seconds, 3)}
        append_record(path, record)
        records[i] = record
        times.append(seconds)
        mean = sum(times) / len(times)
        on_progress(SweepProgress(len(points) - left, len(points), left * mean, record))
    complete = [record for record in records if record is not None]
    write_csv(Path(path).with_suffix(".csv"), complete)
    return complete
