"""`mase clean`: delete what commands wrote, and nothing else.

A folder belongs to a command if its record lists the files of the run, or if it holds the state of
an interrupted run. The listed files and that state are deleted; all other files stay.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.cli.console import write_line
from chop.cli.failures import UsageError
from chop.cli.output import FILES, SCRATCH, alone_in
from chop.cli.run_log import LOGS
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL
from chop.cli.stages import STAMP
from chop.errors import ChopError
from chop.files import read_json

EXAMPLES = ("mase clean", "mase clean out/train out/search --yes", "mase clean --unfinished")
RECORDS = ("result.json", STAMP)
"""Files that list what a run wrote."""
STATES = {"checkpoints": "*/*/run.json", "study": "*/run.json", "records": "*/run.json"}
"""Folder with the state of an interrupted run -> a file that identifies it."""
DEPTH = 3
"""Levels below a named folder that are searched for output folders."""


@dataclass(frozen=True, kw_only=True)
class CleanConfig:
    """Folders to clean."""

    folders: Annotated[
        tuple[str, ...], "Output folders of commands, or folders of such folders. Default: out."
    ] = field(default=("out",), metadata=POSITIONAL)
    yes: Annotated[bool, "Delete without asking."] = False
    unfinished: Annotated[bool, "Delete only the state of interrupted runs."] = False


@dataclass(frozen=True)
class Rubbish:
    """Entries of a folder to delete, and the names of those that stay."""

    folder: Path
    entries: tuple[Path, ...]
    left: tuple[str, ...]

    @property
    def size(self) -> int:
        """Size of the entries to delete, in bytes."""
        return sum(_size(entry) for entry in self.entries)


def run(config: CleanConfig, session: Session) -> dict[str, Any]:
    """List what would be deleted, ask, delete."""
    rubbish = [each for name in config.folders for each in find_rubbish(Path(name), config)]
    session.console.table([_row(each) for each in rubbish])
    if not rubbish:
        session.console.say(f"nothing to delete in {', '.join(config.folders)}")
        return {"deleted": [], "bytes": 0}
    total = sum(each.size for each in rubbish)
    _ask(config, len(rubbish), total, session)
    deleted = [str(entry) for each in rubbish for entry in delete(each, session)]
    session.console.say(f"deleted {_shown(total)}")
    return {"deleted": deleted, "bytes": total}


def find_rubbish(root: Path, config: CleanConfig) -> Iterator[Rubbish]:
    """Yield the entries to delete in the folders at and below `root`, the innermost first."""
    if not root.is_dir():
        if root == Path("out"):  # nothing was written yet
            return
        raise UsageError(f"clean.folders: '{root}' is no folder.")
    for folder in sorted(_folders(root), key=lambda path: -len(path.parts)):
        entries = tuple(_entries(folder, unfinished=config.unfinished))
        if entries:
            names = {entry.name for entry in entries}
            left = sorted(entry.name for entry in folder.iterdir() if entry.name not in names)
            yield Rubbish(folder, entries, tuple(left))


def _folders(root: Path) -> list[Path]:
    """Return `root` and the folders below it, without following links."""
    folders = [] if root.is_symlink() else [root]
    for path, below, _ in os.walk(root):
        here = Path(path)
        deep = len(here.parts) - len(root.parts)
        below[:] = [name for name in below if not (here / name).is_symlink() and deep < DEPTH]
        folders += [here / name for name in below]
    return folders


def _entries(folder: Path, *, unfinished: bool) -> Iterator[Path]:
    for name, known_by in STATES.items():
        if any((folder / name).glob(known_by)) and not (folder / name).is_symlink():
            yield folder / name
    yield from sorted(folder.glob(f"{SCRATCH}*"))
    if unfinished:
        return
    listed = {name for record in RECORDS for name in _listed(folder / record)}
    yield from sorted(folder / name for name in listed if os.path.lexists(folder / name))
    if listed and any((folder / LOGS).glob("*.log")) and LOGS not in listed:
        yield folder / LOGS


def _listed(record: Path) -> list[str]:
    """Return the names that a record lists, without those that are no plain file names."""
    if not record.is_file() or record.is_symlink():
        return []
    try:
        content = read_json(record, UsageError)
    except ChopError:
        return []
    names = content.get(FILES) if isinstance(content, dict) else None
    if not isinstance(names, list):
        return []
    return [n for n in names if isinstance(n, str) and n not in ("", ".", "..") and "/" not in n]


def _row(rubbish: Rubbish) -> dict[str, Any]:
    names = [entry.name for entry in rubbish.entries]
    return {
        "folder": f"{rubbish.folder}/",
        "deleted": ", ".join(names[:4]) + (f" … ({len(names)})" if len(names) > 4 else ""),
        "size": _shown(rubbish.size),
        "left": ", ".join(rubbish.left),
    }


def _ask(config: CleanConfig, folders: int, size: int, session: Session) -> None:
    if config.yes:
        session.start_work()
        return
    if session.console.is_json or not sys.stdin.isatty():
        raise UsageError(
            f"clean: {folders} folders, {_shown(size)} would be deleted, and nobody can be asked. "
            "Give --yes."
        )
    session.start_work()
    question = f"delete {_shown(size)} in {folders} folders? [y/N] "
    write_line(session.console.err, question, end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("clean: nothing was deleted.")


def delete(rubbish: Rubbish, session: Session) -> Iterable[Path]:
    """Delete the entries and a folder that is then empty, unless a command writes to it."""
    try:
        with alone_in(rubbish.folder):
            for entry in rubbish.entries:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
                yield entry
    except UsageError as error:  # another command is writing there
        session.console.note(str(error))
        return
    if not any(rubbish.folder.iterdir()):
        rubbish.folder.rmdir()


def _size(entry: Path) -> int:
    if entry.is_symlink() or not entry.is_dir():
        return entry.lstat().st_size
    return sum(file.lstat().st_size for file in entry.rglob("*") if not file.is_dir())


def _shown(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
