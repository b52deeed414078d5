"""The folder a command writes: complete, or as it was before."""

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
"""In a scratch folder: all of it is written, and moving it has begun."""
ASIDE = ".old."
FILES = "files"
"""In the record of a run: the names of what it wrote into its folder, for `mase clean`."""
LOCK = ".writing"
"""Held while a command runs."""


def check_out(folder: Path) -> None:
    """Refuse an output folder that cannot be written to, before anything is done."""
    place = folder.absolute()
    there = next(each for each in (place, *place.parents) if each.exists())
    if not there.is_dir():
        raise UsageError(f"--out {folder}: {there} is a file, and a folder is due there.")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".mase", dir=there))
    except OSError as error:
        told = f"--out {folder}: {there} cannot be written to ({error.strerror})."
        raise UsageError(told) from error


@contextlib.contextmanager
def staged(folder: Path, obsolete: Iterable[Path] = ()) -> Iterator[Path]:
    """A folder to write to, whose contents move to `folder` when the block ends without error.

    Nobody else writes to `folder` meanwhile. What a killed command left there is finished where
    it was complete, and else removed. `obsolete` folders go when the contents are in their place.
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
            for each in obsolete:  # in one step: half a checkpoint would pass for one
                if each.exists():
                    os.replace(each, scratch / f"{ASIDE}{each.name}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other commands from writing results to `folder`; a kill lets go of it."""
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
    """The open file `lock`, which nobody else holds."""
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
        os.close(handle)  # who held it has just ended and removed the file


def publish(source: Path, folder: Path) -> list[str]:
    """Move every entry of `source` into `folder`, each in one step; their names.

    The two files of a checkpoint are one entry.
    """
    from chop.ir.store.checkpoint import is_checkpoint  # here: help needs no torch
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
    if target.is_dir():  # a folder is replaced whole: no file of an earlier run stays in it
        aside = source / f"{ASIDE}{name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(target, aside)
    os.replace(source / name, target)


def recover(folder: Path) -> None:
    """Finish what a killed command had written whole, remove what it had not.

    Its process is dead: who calls this is alone in the folder.
    """
    for scratch in folder.glob(f"{SCRATCH}*"):
        if (scratch / COMPLETE).exists() and not scratch.is_symlink():
            publish(scratch, folder)
        shutil.rmtree(scratch, ignore_errors=True)


def settle(folder: Path) -> None:
    """Before reading a folder: finish what a killed command had begun to move into it.

    Nothing is done where a command is at work there, or nothing was left half moved.
    """
    if any(folder.glob(f"{SCRATCH}*/{COMPLETE}")):
        with contextlib.suppress(UsageError, OSError), alone_in(folder), folder_lock(folder):
            recover(folder)
