"""Files that others may have written, read with care; files of ours, written whole."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chop.errors import ChopError, ConfigError

LARGEST_JSON = 1 << 30
"""Bytes of JSON that are read: more would not fit a graph of a million nodes."""
DEEPEST = 100
"""Levels of nesting that are read; what this package writes has fewer than forty."""

LARGEST_HOLES = 1 << 20
"""Bytes of holes that a file may have, beyond as many as it has bytes on the disk."""


def read_text(file: Path, error: type[ChopError], largest: int = LARGEST_JSON) -> str:
    """The text of a file of at most `largest` bytes; anything else is an `error` that names it."""
    if not file.is_file():
        raise error(f"{file}: no such file.")
    try:
        size = file.stat().st_size
        if size > largest:
            raise error(f"{file}: {size} bytes. Allowed: at most {largest}.")
        return file.read_bytes().decode()
    except OSError as problem:
        raise error(f"{file}: cannot be read ({problem.strerror}).") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{file}: not text in UTF-8 (byte {problem.start}).") from problem


def check_stored(file: Path, error: type[ChopError]) -> None:
    """Raise `error` if most of `file` is holes: it costs its sender nothing, and memory here."""
    size, stored = file.stat().st_size, stored_bytes(file)
    if size > 2 * stored + LARGEST_HOLES:
        raise error(
            f"{file}: {size} bytes, of which the disk holds {stored}. "
            "Allowed: files without large holes."
        )


def stored_bytes(file: Path) -> int:
    """Return the number of bytes of `file` that the disk holds: its size without holes."""
    with file.open("rb") as opened:
        size, end, stored = os.fstat(opened.fileno()).st_size, 0, 0
        while end < size:
            try:
                start = os.lseek(opened.fileno(), end, os.SEEK_DATA)
            except OSError:  # a hole up to the end
                break
            end = os.lseek(opened.fileno(), start, os.SEEK_HOLE)
            stored += end - start
    return stored


def read_json(file: Path, error: type[ChopError], *, finite: bool = False) -> Any:
    """What a JSON file says. `finite`: refuse NaN and Infinity, which are no JSON."""
    return parse_json(read_text(file, error), str(file), error, finite=finite)


def parse_json(text: str, where: str, error: type[ChopError], *, finite: bool = False) -> Any:
    """What JSON text says, read one way only: no key twice, and no deeper than `DEEPEST`."""

    def constant(name: str) -> float:
        if finite:
            raise ValueError(f"{name} is not JSON")
        return float(name)

    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=constant)
    except ValueError as problem:
        raise error(f"{where}: not a readable JSON file ({problem}).") from problem
    except RecursionError as problem:
        raise error(f"{where}: nested deeper than {DEEPEST} levels.") from problem
    if _is_deep(found):
        raise error(f"{where}: nested deeper than {DEEPEST} levels.")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return made


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [item for each in level for item in _items(each)]
        if not level:
            return False
    return True


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [v for v in value.values() if isinstance(v, dict | list)]
    return [v for v in value if isinstance(v, dict | list)] if isinstance(value, list) else []


def shown(value: Any) -> str:
    """`value` for a message: its start, and never a second line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def remove_whole(folder: Path) -> None:
    """Remove a folder so that after a kill it is there whole, or not at all."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)  # what a killed process left
    if folder.exists():
        os.replace(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


@contextlib.contextmanager
def whole_file(path: Path, *, to_disk: bool = False, is_held: bool = False) -> Iterator[Path]:
    """A draft to write, beside `path`: it is `path` when the block ends well, else it is gone.

    Readers see the file as it was before or as it is after, never half of it; with `to_disk`, also
    after a loss of power. Two processes that write to one folder take turns, unless the caller
    holds it (`is_held`); what a killed one left is removed.
    """
    _make_room(path)
    with contextlib.nullcontext() if is_held else folder_lock(path.parent):
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.draft*"):
            leftover.unlink(missing_ok=True)
        draft = path.with_name(f".{path.name}.draft{os.getpid()}")
        try:
            yield draft
            if to_disk:
                bring_to_disk(draft)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make `folder` and those it is in; raise where one of them cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be a folder ({error.strerror}).") from error


def _make_room(path: Path) -> None:
    """Make the folder that `path` is in; raise where a file cannot be written there."""
    make_folder(path.parent)
    if path.is_dir():
        raise ConfigError(f"{path}: a folder is there, and a file is to be written.")


def write_whole(path: Path, text: str) -> Path:
    """Write so that the file is there with all of its text, or not at all."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")
    return path


def drop_torn_line(file: Path) -> None:
    """Cut off a last line that a kill left without its end: no one was told that it is there."""
    if not file.is_file():
        return
    with file.open("rb+") as opened:
        content = opened.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            opened.truncate(whole)


def cache_dir() -> Path:
    """Where what was built is kept: $MASE_CACHE_DIR, else `mase` in the user's cache folder."""
    asked = os.environ.get("MASE_CACHE_DIR")
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(asked) if asked else Path(user_cache) / "mase"


@contextlib.contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold `folder` for writing, or with others for reading; a kill lets go of it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def bring_to_disk(path: Path) -> None:
    """Make sure that a file's bytes, or a folder's names, outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system that cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
