"""What an export wrote: one record per tensor, and what the target could not say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as it was written; `is_exact`: with the values that the model computes with."""

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
    """`records` of the tensors, and `dropped`: parts of the model that the target does without."""

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
        """Bits an element takes on average."""
        return 8 * self.nbytes / max(sum(r.elements for r in self.records), 1)

    @property
    def changed(self) -> list[TensorRecord]:
        """The tensors whose values are not those of the model."""
        return [r for r in self.records if not r.is_exact]

    def table(self) -> str:
        """The records as a table."""
        headers = ("tensor", "format", "written as", "bytes", "equal", "note")
        rows = [
            (r.name, r.format, r.written, r.nbytes, "yes" if r.is_exact else "no", r.note)
            for r in self.records
        ]
        return tabulate(rows, headers)

    def __str__(self) -> str:
        kinds = Counter(r.written for r in self.records)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines = [f"{self.path}: {self.target}, {self.nbytes / 2**20:.2f} MiB ({shown})"]
        if self.changed:
            lines.append(f"{len(self.changed)} tensors were rounded to the target's types")
        return "\n".join([*lines, *self.dropped])
