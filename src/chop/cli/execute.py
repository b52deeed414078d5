"""Execution of a command: the same for the command line and for Python."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chop.cli.commands import Command
from chop.cli.console import Console
from chop.cli.named_objects import load_name
from chop.cli.output import FILES, check_out, staged
from chop.cli.rank_launcher import end_with_starter
from chop.cli.run_log import run_log
from chop.cli.session import CommandResult, DryRunEnd, Session
from chop.cli.settings import to_toml
from chop.cli.step_progress import step_progress
from chop.files import write_whole
from chop.log import get_report_logger

RESULT, CONFIG = "result.json", "config.toml"
INFERRED_DEFAULTS = "chop.cli.inferred_defaults:with_inferred_defaults"


def execute(
    command: Command, config: Any, console: Console, words: Sequence[str] = ()
) -> CommandResult:
    """Run a command; its files appear in `config.out` when it has succeeded.

    `words`: the command line, for the log.
    """
    if not hasattr(config, "out"):
        return CommandResult(command.run(config, Session(console, Path(), Path())))
    session = Session(console, Path(), config.out)
    settings = to_toml(command.name, config)
    with (
        _imports_frozen(),
        staged(config.out, session.obsolete) as session.folder,
        run_log(config.out, words or [command.name], settings, console) as session.console,
    ):
        config = _completed(config, session.console)
        with step_progress(session.console):
            result = CommandResult(command.run(config, session))
        write_whole(session.folder / CONFIG, to_toml(command.name, config))
        written = sorted({*(entry.name for entry in session.folder.iterdir()), RESULT})
        with (session.folder / RESULT).open("w") as opened:
            Console(out=opened).document({**result, FILES: written})
    result.graph, result.out = session.graph, config.out
    return result


def check(command: Command, config: Any, console: Console) -> None:
    """Run a command up to the start of its work, in a temporary folder: a dry run."""
    if hasattr(config, "out"):
        check_out(config.out)
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "w") as nowhere:
        silent = Console(is_json=console.is_json, is_quiet=True, out=nowhere, err=console.err)
        session = Session(silent, Path(scratch, "results"), Path(scratch, "out"), is_dry=True)
        session.folder.mkdir()
        with contextlib.suppress(DryRunEnd):
            command.run(_completed(config, silent), session)


def follow(command: Command, config: Any, console: Console) -> None:
    """Run a command in a process that helps the first one, which prints and writes the results."""
    end_with_starter()
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "w") as nowhere:
        silent = Console(is_quiet=True, out=nowhere, err=console.err)
        session = Session(silent, Path(scratch, "results"), config.out)
        session.folder.mkdir()
        command.run(_completed(config, silent), session)


def _completed(config: Any, console: Console) -> Any:
    """Return `config` with the defaults that follow from the model and the data."""
    if not hasattr(config, "dataset"):  # tested by name: the function itself needs torch
        return config
    return load_name(INFERRED_DEFAULTS)(config, console)


@contextlib.contextmanager
def report_level(level: str) -> Iterator[None]:
    """Set the level of the tables that passes log; commands print their own."""
    reports = get_report_logger()
    before = reports.level
    reports.setLevel(level)
    try:
        yield
    finally:
        reports.setLevel(before)


_are_frozen = False
"""True if a command around this one, or a caller that sets it, has excluded imported modules."""


@contextlib.contextmanager
def _imports_frozen() -> Iterator[None]:
    """Exclude imported modules from garbage collection, which each training ends with."""
    global _are_frozen
    if _are_frozen:
        yield
        return
    _are_frozen = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _are_frozen = False
