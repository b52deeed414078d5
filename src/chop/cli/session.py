"""The surroundings of a running command."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chop.cli.console import Console


class Checked(Exception):  # noqa: N818 - it ends a dry run that found no error
    """The end of a dry run: every check of the command has passed."""


@dataclass(frozen=True)
class Session:
    """Console and folders of one run of a command.

    `folder` takes finished results, which move to `out` when the command ends well.
    What must survive an interruption is written to `out` itself; what of it is of no use once the
    results are there is listed in `obsolete`. `is_dry`: check the request and stop before the work;
    both folders are then temporary.
    """

    console: Console
    folder: Path
    out: Path
    obsolete: list[Path] = field(default_factory=list)
    is_dry: bool = False

    def start_work(self) -> None:
        """End a dry run here. Commands call this after their checks and before long work."""
        if self.is_dry:
            raise Checked
