"""Rows of a table that is made over many runs: one line of JSON each, written as it is found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY = ("subject", "scheme", "method", "seed", "held", "calibration")
Row = dict[str, Any]


class Rows:
    """The rows of one file. A run that is interrupted goes on where it stopped."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self.found = {self._key(row): row for row in read_rows(file)}

    @staticmethod
    def _key(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in KEY)

    def make(self, row: Row, measure: Callable[[], Row]) -> Row:
        """The row whose names are `row`, with what `measure` gives if it is not known yet."""
        key = self._key(row)
        if key not in self.found:
            start = time.monotonic()
            self.found[key] = {**row, **measure()}
            self.found[key].setdefault("seconds", round(time.monotonic() - start, 1))
            with self.file.open("a") as file:
                file.write(json.dumps(self.found[key]) + "\n")
            print(json.dumps(self.found[key]), flush=True)
        return self.found[key]


def read_rows(file: Path) -> list[Row]:
    """The rows of `file`; a last line that was cut off is dropped."""
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]
