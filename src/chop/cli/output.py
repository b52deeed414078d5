"""The folder a command writes: complete, or as it was before."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from chop.cli.failures import UsageError

STAGED = ".staged."


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder to write to, whose contents move to `folder` when the block ends without error.

    Nobody else writes to `folder` meanwhile; what a killed process left there half-done goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        for left in folder.glob(f"{STAGED}*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = folder / f"{STAGED}{os.getpid()}"
        scratch.mkdir()
        try:
            yield scratch
            publish(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from writing results to `folder`; the lock ends with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{folder}: another mase is writing its results there. Wait until it is done, or "
                "give another --out."
            ) from error
        yield
    finally:
        os.close(handle)


def publish(source: Path, folder: Path) -> list[str]:
    """Move every entry of `source` into `folder`, each in one step; their names."""
    names = sorted(entry.name for entry in source.iterdir())
    for name in names:
        target = folder / name
        if target.is_dir():  # a folder is replaced whole: no file of an earlier run stays in it
            aside = source / f".old.{name}"
            os.replace(target, aside)
        os.replace(source / name, target)
    return names


def write_text(path: Path, text: str) -> Path:
    """Write so that the file is there with all of its text, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
    return path
