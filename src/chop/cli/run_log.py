"""Log of each run, in its output folder."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import platform
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from chop.cli.console import Console
from chop.log import ROOT, PrintableFormatter
from chop.printable import printable

LOGS = "logs"
"""Folder of logs in an output folder."""


@contextlib.contextmanager
def run_log(out: Path, words: Sequence[str], settings: str, console: Console) -> Iterator[Console]:
    """Yield `console` with a copy of its output in a new file of `<out>/logs`.

    The log of a failed run stays and holds the traceback. A log that cannot be opened is skipped.
    """
    try:
        opened = _open(out, words[0] if words else "mase")
    except OSError as error:
        console.note(f"no log is written ({error})")
        yield console
        return
    with opened:
        _head(opened, words, settings)
        handler = logging.StreamHandler(opened)
        handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
        logger, start = logging.getLogger(ROOT), time.monotonic()
        logger.addHandler(handler)
        try:
            yield dataclasses.replace(console, log=opened)
            opened.write(f"done in {time.monotonic() - start:.1f} s\n")
        except BaseException as error:
            opened.write(printable(f"\n{''.join(traceback.format_exception(error))}"))
            opened.write(
                f"ended by {type(error).__name__} after {time.monotonic() - start:.1f} s\n"
            )
            raise
        finally:
            logger.removeHandler(handler)


def _open(out: Path, command: str) -> TextIO:
    """Open a new file, named by the time, with a number if the name exists."""
    folder = out / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}-{command}"
    for number in range(1, 1000):
        name = f"{stem}.log" if number == 1 else f"{stem}-{number}.log"
        with contextlib.suppress(FileExistsError):
            return (folder / name).open("x", encoding="utf-8", buffering=1)
    raise OSError(f"{folder}: too many logs of one second")


def _head(opened: TextIO, words: Sequence[str], settings: str) -> None:
    machine = f"Python {platform.python_version()}, {platform.platform()}"
    opened.write(f"mase {shlex.join(words)}\n{machine}\nin {Path.cwd()}\n")
    torch = sys.modules.get("torch")
    if torch is not None:
        opened.write(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    opened.write(f"\n{settings}\n")
