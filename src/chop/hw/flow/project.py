"""Project directories of emitted hardware: the default, and the latest."""

from __future__ import annotations

from pathlib import Path

DEFAULT_PROJECT = Path("mase_output/top")
_emitted: list[Path] = []


def remember_project(project: Path) -> None:
    """Note that a top was emitted to `project`."""
    _emitted[:] = [project]


def latest_project() -> Path:
    """Return the project this process last emitted a top to, else the default.

    `simulate()` after the emit passes means the design they wrote.
    """
    return _emitted[0] if _emitted else DEFAULT_PROJECT
