"""Records of measurements on disk: one JSON object per line, appended completely or not at all."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.errors import DataError
from chop.files import drop_torn_line, make_folder, parse_json, read_text, whole_file

MeasurementRecord = dict[str, Any]


def read_records(path: str | Path) -> list[MeasurementRecord]:
    """Return the records in a file, without a last line that was cut short; [] without a file."""
    file = Path(path)
    if not file.is_file():
        return []
    *lines, _incomplete = read_text(file, DataError).split("\n")
    return [_decode(line, file, number) for number, line in enumerate(lines, start=1) if line]


def _decode(line: str, file: Path, number: int) -> MeasurementRecord:
    record = parse_json(line, f"{file}, line {number}", DataError)
    if not isinstance(record, dict):
        raise DataError(f"{file}, line {number}: not a JSON object.")
    return record


def append_record(path: str | Path, record: Mapping[str, Any]) -> None:
    """Append one record and flush it to the disk; first delete a line that a kill cut short."""
    file = Path(path)
    make_folder(file.parent)
    drop_torn_line(file)
    line = json.dumps(record, sort_keys=False) + "\n"
    with file.open("ab", buffering=0) as opened:  # one write: readers never see half a line
        opened.write(line.encode())
        os.fsync(opened.fileno())


def find_record(
    records: Iterable[MeasurementRecord], key: Mapping[str, Any]
) -> MeasurementRecord | None:
    """Return the first record whose fields include all of `key`, or None."""
    fields = json.loads(json.dumps(key))
    return next((r for r in records if all(k in r and r[k] == v for k, v in fields.items())), None)


def write_csv(path: str | Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write the records as a table with a column for every field, in order of appearance."""
    file = Path(path)
    columns = list(dict.fromkeys(name for record in records for name in record))
    with whole_file(file) as draft, draft.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, columns)
        writer.writeheader()
        writer.writerows(records)
    return file
