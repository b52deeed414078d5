"""Output folders of commands, which are written completely or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from chop.cli.failures import UsageError
from chop.files import folder_lock

SCRATCH = ".staged."
COMPLETE = ".complete"
"""File in a scratch folder that is complete and may be moved."""
ASIDE = ".old."
FILES = "files"
"""Key of a record: names of the files of the run, for `mase clean`."""
LOCK = ".writing"
"""File that is locked while a command runs."""


def check_out(folder: Path) -> None:
    """Raise if an output folder cannot be written to."""
    place = folder.absolute()
    there = next(each for each in (place, *place.parents) if each.exists())
    if not there.is_dir():
        raise UsageError(f"--out {folder}: {there} is a file, and a folder is due there.")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".mase", dir=there))
    except OSError as error:
        message = f"--out {folder}: {there} cannot be written to ({error.strerror})."
        raise UsageError(message) from error


@contextlib.contextmanager
def staged(folder: Path, obsolete: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield a scratch folder whose contents move to `folder` when the block succeeds.

    `folder` is locked meanwhile. A complete scratch folder of a killed command is moved first, an
    incomplete one deleted. `obsolete` folders are deleted after the move.
    """
    check_out(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"{SCRATCH}{os.getpid()}"
    with alone_in(folder):
        with folder_lock(folder):
            recover(folder)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
            (scratch / COMPLETE).touch()
            with folder_lock(folder):
                publish(scratch, folder)
            for each in obsolete:  # atomically: half a checkpoint would look complete
                if each.exists():
                    os.replace(each, scratch / f"{ASIDE}{each.name}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock `folder` against other commands; the lock ends with the process."""
    lock = folder / LOCK
    handle = _hold(lock)
    try:
        yield
    finally:
        try:
            lock.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _hold(lock: Path) -> int:
    """Open and lock the file `lock`; raise if another process holds it."""
    while True:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise UsageError(
                f"{lock.parent}: another mase is writing its results there. Wait until it is "
                "done, or give another --out."
            ) from error
        if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
            return handle
        os.close(handle)  # the previous holder has just removed the file


def publish(source: Path, folder: Path) -> list[str]:
    """Move every entry of `source` into `folder`, each atomically; return their names.

    The two files of a checkpoint move together.
    """
    from chop.ir.store.checkpoint import is_checkpoint  # imported here: it imports torch
    from chop.ir.store.tensors import move_pair

    names = sorted(entry.name for entry in source.iterdir() if not _is_ours(entry.name))
    pairs = [n.removesuffix(".json") for n in names if is_checkpoint(source / n)]
    pairs = [n for n in pairs if f"{n}.safetensors" in names]
    both = {f"{n}{suffix}" for n in pairs for suffix in (".json", ".safetensors")}
    for name in names:
        if name not in both:
            _move(source, folder, name)
    for name in pairs:
        move_pair(source / name, folder / name)
    return names


def _is_ours(name: str) -> bool:
    return name == COMPLETE or name.startswith(ASIDE)


def _move(source: Path, folder: Path, name: str) -> None:
    target = folder / name
    if target.is_dir():  # replace the whole folder, with all files of an earlier run
        aside = source / f"{ASIDE}{name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(target, aside)
    os.replace(source / name, target)


def recover(folder: Path) -> None:
    """Move the complete scratch folders of killed commands, delete the others.

    The caller holds the lock of the folder, so their processes are dead.
    """
    for scratch in folder.glob(f"{SCRATCH}*"):
        if (scratch / COMPLETE).exists() and not scratch.is_symlink():
            publish(scratch, folder)
        shutil.rmtree(scratch, ignore_errors=True)


def settle(folder: Path) -> None:
    """Finish the move that a killed command began, before the folder is read.

    Does nothing if another command holds the folder.
    """
    if any(folder.glob(f"{SCRATCH}*/{COMPLETE}")):
        with contextlib.suppress(UsageError, OSError), alone_in(folder), folder_lock(folder):
            recover(folder)
