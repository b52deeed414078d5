"""Rows of a table that is made over many runs: one line of JSON each, written as it is found."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEY = ("subject", "tool", "scheme", "method", "seed", "held", "calibration")
FILE_BYTE = 2**40
"""Byte of the file of locks that stands for the file of rows; rows have smaller numbers."""
ERROR = "error"
"""Key of a row that could not be measured."""
Row = dict[str, Any]


class Rows:
    """The rows of one file. A run that is interrupted goes on where it stopped."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self.found = {key_of(row): row for row in read_rows(file)}

    def make(self, row: Row, measure: Callable[[], Row]) -> Row:
        """The row whose names are `row`, with what `measure` gives if it is not known yet."""
        key = key_of(row)
        if key not in self.found:
            start = time.monotonic()
            self.found[key] = {**row, **measure()}
            self.found[key].setdefault("seconds", round(time.monotonic() - start, 1))
            with self.file.open("a") as file:
                file.write(json.dumps(self.found[key]) + "\n")
            print(json.dumps(self.found[key]), flush=True)
        return self.found[key]


def key_of(row: Row) -> tuple[Any, ...]:
    """Return the names that tell a row from the others."""
    return tuple(row.get(name) for name in KEY)


class SharedRows:
    """Rows of one file that several processes measure at the same time, each row once.

    A process locks one byte of a second file for each row that it measures. The system drops the
    locks of a process that ends in any way, so that a row without a result is free again.
    `seconds`: no row is begun after them. `again`: measure rows with an error again.
    """

    def __init__(self, file: Path, seconds: float | None = None, *, again: bool = False) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.again = file, again
        self.end = None if seconds is None else time.monotonic() + seconds
        self._locks = os.open(file.with_suffix(".locks"), os.O_RDWR | os.O_CREAT)

    def make(self, row: Row, measure: Callable[[], Row]) -> None:
        """Append the row with what `measure` returns, unless it is known or being measured."""
        place = zlib.crc32(repr(key_of(row)).encode())
        if self.end is not None and time.monotonic() > self.end:
            return
        with self._locked(place, is_waiting=False) as is_own:
            if is_own and key_of(row) not in self._known():
                start = time.monotonic()
                found = {**row, **measure()}
                found.setdefault("seconds", round(time.monotonic() - start, 1))
                self._append(found)

    def _known(self) -> set[tuple[Any, ...]]:
        with self._locked(FILE_BYTE):
            rows = read_rows(self.file)
        return {key_of(row) for row in rows if not (self.again and ERROR in row)}

    def _append(self, row: Row) -> None:
        text = json.dumps(row)
        with self._locked(FILE_BYTE):
            read_rows(self.file)  # drops what a killed process left of a line
            with self.file.open("a") as file:
                file.write(text + "\n")
        print(text, flush=True)

    @contextlib.contextmanager
    def _locked(self, place: int, *, is_waiting: bool = True) -> Iterator[bool]:
        """Lock a byte inside the context; yield False if another process has it."""
        mode = fcntl.LOCK_EX if is_waiting else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.lockf(self._locks, mode, 1, place)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, place)


def latest(rows: list[Row]) -> list[Row]:
    """Return the last row of each name, in the order of their names."""
    found = {key_of(row): row for row in rows}
    return [found[key] for key in sorted(found, key=repr)]


def read_rows(file: Path) -> list[Row]:
    """The rows of `file`; a last line that was cut off is dropped."""
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]
