"""Claims about a component: what is proved of it, and faults that a proof must refute.

`laws.svh` of a component folder has the laws (`chop.hw.proofs.harness_maker`), `proof.toml` the
sizes they are proved at: `sizes` of all proofs, a `[[proof]]` for each with further sizes, and
`fault`, an edit of the RTL that the first proof refutes. A `table` of words becomes the file
"table.mem" and the constant TABLE. A folder whose proofs are computed has `proof.py` instead, with
`PROOFS` and `FAULT`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chop.errors import HardwareError

LAWS = ("order", "stable", "progress")
"""Names of the bits of `broken`, from bit 0 on."""
Sizes = Mapping[str, int | str]


@dataclass(frozen=True)
class Edit:
    """A replaced text of a module: a variant that only large sizes have, or a fault."""

    module: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return `text` with the edit; raise an error unless `old` is there exactly once."""
        if text.count(self.old) != 1:
            raise HardwareError(
                f"{self.module}: {self.old!r} is there {text.count(self.old)} times, expected once."
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Proof:
    """A module with chosen sizes, and the laws to prove of it."""

    module: str
    parameters: Sizes = field(default_factory=dict)
    """Sizes that tell this proof from others of the module."""
    laws: tuple[str, ...] = LAWS
    files: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Words of memories, by file name."""
    edits: tuple[Edit, ...] = ()
    is_slow: bool = False
    sizes: Sizes = field(default_factory=dict)
    """Further parameters, which all proofs of the module share."""
    text: Path = field(kw_only=True)
    """File of the laws."""

    def __str__(self) -> str:
        shown = [f"{k}={v}" for k, v in self.parameters.items() if len(str(v)) < 8]
        return " ".join([self.module, *shown])

    def with_fault(self, fault: Edit) -> Proof:
        """Return the same proof of a module that has a fault."""
        return replace(self, edits=(*self.edits, fault))


def read_proofs(folder: Path) -> tuple[Proof, ...]:
    """Return the proofs that `proof.toml` of a component folder lists."""
    claims = tomllib.loads((folder / "proof.toml").read_text())
    laws = tuple(claims.get("laws", LAWS))
    return tuple(_proof(folder, row, laws, claims.get("sizes", {})) for row in claims["proof"])


def _proof(folder: Path, row: dict[str, Any], laws: tuple[str, ...], sizes: Sizes) -> Proof:
    parameters, files = {name: row[name] for name in row if name.isupper()}, {}
    if "table" in row:
        parameters["TABLE"] = packed(row["table"], row["table_width"])
        sizes, files = {**sizes, "INIT_FILE": '"table.mem"'}, {"table.mem": row["table"]}
    edits = tuple(Edit(folder.name, **edit) for edit in row.get("edits", ()))
    is_slow, text = row.get("is_slow", False), folder / "laws.svh"
    return Proof(folder.name, parameters, laws, files, edits, is_slow, sizes, text=text)


def read_fault(folder: Path) -> Edit:
    """Return the fault of `proof.toml` that the first proof refutes."""
    return Edit(folder.name, **tomllib.loads((folder / "proof.toml").read_text())["fault"])


def packed(words: Sequence[int], width: int) -> str:
    """Return a table as a constant of SystemVerilog, the first word in the low bits.

    >>> packed((1, 2), 4)
    "8'd33"
    """
    value = sum(word << k * width for k, word in enumerate(words))
    return f"{width * len(words)}'d{value}"
