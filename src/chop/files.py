"""Reading of untrusted files with limits, and writing of files whole or not at all."""

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
"""Largest JSON file that is read, in bytes: enough for a graph of a million nodes."""
DEEPEST = 100
"""Most levels of nesting that are read; files of this package have fewer than forty."""
LARGEST_HOLES = 1 << 20
"""Bytes of holes that a file may have in addition to its bytes on the disk."""


def read_text(file: Path, error: type[ChopError], largest: int = LARGEST_JSON) -> str:
    """Return the text of a file of at most `largest` bytes; raise `error` for other files."""
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
    """Raise `error` if most of `file` is holes, which cost memory but no disk space."""
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
    """Return the content of a JSON file. `finite`: raise for NaN and Infinity."""
    return parse_json(read_text(file, error), str(file), error, finite=finite)


def parse_json(text: str, where: str, error: type[ChopError], *, finite: bool = False) -> Any:
    """Return the content of JSON text; raise for a duplicate key or too deep nesting."""

    def constant(name: str) -> float:
        if finite:
            raise ValueError(f"{name} is not JSON")
        return float(name)

    try:
        content = json.loads(text, object_pairs_hook=_object, parse_constant=constant)
    except ValueError as problem:
        raise error(f"{where}: not a readable JSON file ({problem}).") from problem
    except RecursionError as problem:
        raise error(f"{where}: nested deeper than {DEEPEST} levels.") from problem
    if _is_deep(content):
        raise error(f"{where}: nested deeper than {DEEPEST} levels.")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return mapping


def _is_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def shown(value: Any) -> str:
    """Return the start of `value` for a message, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def remove_whole(folder: Path) -> None:
    """Remove a folder so that after a kill it exists whole or not at all."""
    trash = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(trash, ignore_errors=True)  # of a killed process
    if folder.exists():
        os.replace(folder, trash)
        shutil.rmtree(trash, ignore_errors=True)


@contextlib.contextmanager
def whole_file(path: Path, *, to_disk: bool = False, is_held: bool = False) -> Iterator[Path]:
    """Yield a draft to write, which replaces `path` if the block succeeds.

    Readers see the whole old or the whole new file; with `to_disk`, also after a loss of power.
    Processes that write to one folder take turns, unless the caller has locked it (`is_held`).
    Drafts of killed processes are removed.
    """
    make_folder(path.parent)
    if path.is_dir():
        raise ConfigError(f"{path}: a folder is there, and a file is to be written.")
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
    """Create `folder` and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be a folder ({error.strerror}).") from error


def write_whole(path: Path, text: str) -> Path:
    """Write a text file whole or not at all; return its path."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")
    return path


def drop_torn_line(file: Path) -> None:
    """Remove a last line without its end, which an interrupted write left."""
    if not file.is_file():
        return
    with file.open("rb+") as opened:
        content = opened.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            opened.truncate(whole)


def cache_dir() -> Path:
    """Return the cache folder: $MASE_CACHE_DIR, or else `mase` in the user's cache folder."""
    own = os.environ.get("MASE_CACHE_DIR")
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(user_cache) / "mase"


@contextlib.contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Lock `folder` for writing, or shared for reading; the end of the process releases it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def bring_to_disk(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without fsync
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
