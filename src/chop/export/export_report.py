"""Report of an export: one record per tensor, and the parts that the target does not support."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop import notebook

HEADERS = ("tensor", "format", "written as", "bytes", "equal", "note")


@dataclass(frozen=True)
class TensorRecord:
    """Tensor in a file; `is_exact`: its values are those that the model computes with."""

    name: str
    source: str
    format: str
    written: str
    elements: int
    nbytes: int
    is_exact: bool
    note: str = ""


@dataclass
class ExportReport:
    """Records of the tensors, and the parts of the model that were `dropped`."""

    target: str
    path: Path
    records: list[TensorRecord] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(r.nbytes for r in self.records)

    @property
    def bits(self) -> float:
        """Average bits per element."""
        return 8 * self.nbytes / max(sum(r.elements for r in self.records), 1)

    @property
    def changed(self) -> list[TensorRecord]:
        """Tensors whose values differ from those of the model."""
        return [r for r in self.records if not r.is_exact]

    def table(self) -> str:
        """Return the records as a table."""
        return tabulate([row.values() for row in self._rows()], HEADERS)

    def _rows(self) -> list[dict[str, Any]]:
        cells = [
            (r.name, r.format, r.written, r.nbytes, "yes" if r.is_exact else "no", r.note)
            for r in self.records
        ]
        return [dict(zip(HEADERS, row, strict=True)) for row in cells]

    def _repr_html_(self) -> str:
        """Return the report as HTML for notebooks."""
        size = f"{self.nbytes / 2**20:.2f} MiB, {self.bits:.2f} bits per element"
        title = notebook.heading(self.path.name, self.target, size)
        notes = "".join(notebook.note(line) for line in self.dropped[: notebook.MOST_ROWS])
        return notebook.shown(title, notes, notebook.table(self._rows()))

    def __str__(self) -> str:
        kinds = Counter(r.written for r in self.records)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines = [f"{self.path}: {self.target}, {self.nbytes / 2**20:.2f} MiB ({shown})"]
        if self.changed:
            lines.append(f"{len(self.changed)} tensors were rounded to the target's types")
        return "\n".join([*lines, *self.dropped])
