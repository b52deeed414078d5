"""Mutants: hand-written faults in the RTL of a component that the tests must notice.

`mutants.toml` of a component folder has a `[[mutant]]` for each, with `what`, `old`, `new` and,
where `old` alone is not unique, `at`. Its table `[equivalent]` has the generated faults that no
test can notice, by kind and fingerprint, each with the reason. A file `<variant>_mutants.toml` has
the faults that only designs of this variant show: `mxint_mutants.toml` of `fixed_linear` those of
MXINT operands.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.hw.design.folders import component_folders


@dataclass(frozen=True)
class Mutant:
    """One fault: in `module`, in the text `at`, the last `old` becomes `new`."""

    what: str
    module: str
    old: str
    new: str
    at: str = ""

    @property
    def is_statement(self) -> bool:
        """True if whole statements are replaced, not an expression."""
        return self.old.endswith(";")

    def span(self, text: str) -> tuple[int, int] | None:
        """Return the place of `old` in the module's text; None if it is not there."""
        place = self.at or self.old
        if place not in text:
            return None
        assert text.count(place) == 1, f"{self.what}: {place!r} is not unique"
        start = text.index(place) + place.rindex(self.old)
        return start, start + len(self.old)


def read_mutants(file: Path) -> list[Mutant]:
    """Return the mutants that a file of a component folder lists."""
    return [Mutant(module=file.parent.name, **row) for row in _read(file).get("mutant", [])]


def read_equivalents(file: Path) -> dict[str, str]:
    """Return the reasons why generated faults change nothing, by the fault's name."""
    rows: dict[str, str] = _read(file).get("equivalent", {})
    return {f"{file.parent.name}:{fault}": reason for fault, reason in rows.items()}


def _read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


def mutant_files() -> dict[str, Path]:
    """Return the files of mutants of all component folders.

    The key is the module's name, for a variant with its name: "fixed_linear", "fixed_linear mxint".
    """
    files = (f for d in component_folders().values() for f in sorted(d.glob("*mutants.toml")))
    return {" ".join([f.parent.name, *f.stem.split("_")[:-1]]): f for f in files}
