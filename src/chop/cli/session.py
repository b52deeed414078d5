"""What a running command has at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chop.cli.console import Console


@dataclass(frozen=True)
class Session:
    """`folder` takes finished results, which move to `out` when the command ends well.

    What must survive an interruption is written to `out` itself; what of it is of no use once the
    results are there is listed in `obsolete`.
    """

    console: Console
    folder: Path
    out: Path
    obsolete: list[Path] = field(default_factory=list)
