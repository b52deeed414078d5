"""Tables of records: drawn as text, logged, and written to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop.files import make_folder
from chop.log import get_report_logger

Rows = Sequence[Mapping[str, Any]]


def draw_table(rows: Rows, headers: Sequence[str], **style: Any) -> str:
    """Return the records as text, one line each, under their headers."""
    cells = [[row[header] for header in headers] for row in rows]
    return tabulate(cells, headers=list(headers), **style)


def show(text: str, file: Path | None = None) -> None:
    """Log a report; also write it to `file` if there is one."""
    get_report_logger().info(text)
    if file is not None:
        make_folder(file.parent)
        file.write_text(text + "\n")
