"""The surroundings of a running command, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chop.cli.console import Console


class DryRunEnd(Exception):  # noqa: N818 - it ends a dry run that found no error
    """The end of a dry run: every check of the command has passed."""


class CommandResult(dict[str, Any]):
    """The record of a command, as in result.json, with the model that it made.

    `graph`: the MaseGraph that the command saved, or None. `out`: the folder of its files, or None.
    """

    graph: Any = None
    out: Path | None = None


@dataclass
class Session:
    """Console and folders of one run of a command.

    `folder` receives finished results, which move to `out` when the command succeeds. Files that
    must survive an interruption are written to `out` directly; those that are useless after success
    are listed in `obsolete`. `is_dry`: check the request and stop before the work; both folders are
    then temporary. `graph`: the model that the command saved.
    """

    console: Console
    folder: Path
    out: Path
    obsolete: list[Path] = field(default_factory=list)
    is_dry: bool = False
    graph: Any = None

    def start_work(self) -> None:
        """End a dry run here. Commands call this after their checks and before long work."""
        if self.is_dry:
            raise DryRunEnd
