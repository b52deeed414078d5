"""What a running command has at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chop.cli.console import Console


@dataclass(frozen=True)
class Session:
    """`folder` takes finished results, which move to `out` when the command ends well.

    What must survive an interruption is written to `out` itself.
    """

    console: Console
    folder: Path
    out: Path
