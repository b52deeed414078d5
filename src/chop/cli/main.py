"""From the command line to a command and its exit code."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.abc
import importlib.metadata
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from chop.cli.commands import COMMANDS, Command
from chop.cli.console import Console, write_line
from chop.cli.failures import FAILED, OK, UsageError, exit_code, explain
from chop.cli.option import (
    Option,
    add_options,
    given_values,
    options_of,
    tables_of,
    takes_the_rest,
)
from chop.cli.output import FILES, check_out, staged
from chop.cli.places import load_name
from chop.cli.run_log import run_log
from chop.cli.session import Checked, Session
from chop.cli.settings import resolve, to_table, to_toml
from chop.files import write_whole
from chop.log import get_report_logger, set_logging_verbosity
from chop.registry import suggest

RESULT, CONFIG = "result.json", "config.toml"
KNOWN_DEFAULTS = "chop.cli.known_defaults:with_known_defaults"


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the program."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(f"{message}. See `{self.prog} --help`.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mase` with the arguments `argv`; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(is_json="--json" in words, is_quiet="--quiet" in words)
    is_debug = "--debug" in words
    _set_environment(console, verbose="--verbose" in words)
    try:
        with _announced(console, words):
            return _dispatch(words, console)
    except BrokenPipeError:  # who read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if is_debug:
            write_line(console.err, "".join(traceback.format_exception(error)), end="")
        code, told = exit_code(error), explain(error)
        if console.is_json:
            problem = {"kind": type(error).__name__, "message": told}
            console.document({"error": problem, "exit_code": code})
        console.fail(told)
        return code


def _dispatch(words: Sequence[str], console: Console) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        console.say(overview())
        return OK
    if words[0] == "--version":
        console.say(f"mase {version()}")
        return OK
    if words[0] not in COMMANDS:
        raise UsageError(f"no command '{words[0]}'. {suggest(words[0], COMMANDS)}")
    command = COMMANDS[words[0]]
    if {"-h", "--help"} & set(words):
        console.say(build_parser(command).format_help())
        return OK
    return _run(command, words[1:], console)


class FirstWords(importlib.abc.MetaPathFinder):
    """Says what is about to be done when torch is first imported: that takes seconds."""

    def __init__(self, console: Console, words: Sequence[str]) -> None:
        self.console, self.text = console, f"mase {' '.join(words)}: loading torch …"

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing; the finders that follow do."""
        if name == "torch" and self.text:
            self.console.note(self.text)
            self.text = ""


@contextlib.contextmanager
def _announced(console: Console, words: Sequence[str]) -> Iterator[None]:
    finder = FirstWords(console, words)
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def overview() -> str:
    """The commands, a line each."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: mase COMMAND [MODEL] [options]",
            "",
            "Capture a model as a graph, then analyse, compress, search, run it or build it.",
            "",
            *lines,
            "",
            "`mase COMMAND --help`: options and examples. `mase doctor`: what this machine has.",
        ]
    )


def version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("masegraph")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


# -- one command -----------------------------------------------------------------------------------


def build_parser(command: Command) -> Parser:
    """The parser of a command, from the fields of its configuration."""
    options = options_of(command.load_config())
    words = [
        option.path[-1].upper() + " …" * option.is_list
        for option in sorted(options, key=takes_the_rest)
        if option.is_positional
    ]
    parser = Parser(
        prog=f"mase {command.name}",
        usage=" ".join(["mase", command.name, *(f"[{word}]" for word in words), "[options]"]),
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=_epilog(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, options)
    common = parser.add_argument_group("Every command")
    for flag, told in SWITCHES.items():
        common.add_argument(flag, action="store_true", help=told)
    common.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"read the table [{command.name}] of a TOML file",
    )
    common.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one value, such as rules.linear.config.width=8; may be repeated",
    )
    return parser


SWITCHES = {
    "--dry-run": "check all that the run checks, print the configuration as TOML, write nothing",
    "--json": "print one JSON document on stdout; everything else goes to stderr",
    "--quiet": "no progress and no notes",
    "--verbose": "say what the library is doing",
    "--debug": "show the traceback of an error",
}
"""Flags of every command that take no value."""


def _epilog(command: Command) -> str:
    lines = ["examples:", *(f"  {example}" for example in command.examples)]
    tables = tables_of(command.load_config())
    if tables:
        lines += ["", f"tables, from --config or --set: {', '.join(tables)}"]
    return "\n".join(lines)


@dataclass(frozen=True)
class Request:
    """A command line, read: the configuration, and the switches that are on."""

    config: Any
    switches: argparse.Namespace


def read_request(command: Command, words: Sequence[str]) -> Request:
    """The configuration that a command line, with the file it names, asks for."""
    options: list[Option] = options_of(command.load_config())
    parser = build_parser(command)
    several = any(takes_the_rest(option) for option in options)
    read = parser.parse_intermixed_args if several else parser.parse_args
    given = read(list(words))
    flags = given_values(options, given)
    cls = command.load_config()
    config: Any = resolve(cls, command.name, given.config, given.set, flags)
    return Request(config, given)


def _run(command: Command, words: Sequence[str], console: Console) -> int:
    request = read_request(command, words)
    config = request.config
    set_logging_verbosity("info" if request.switches.verbose else "warning")
    start = time.monotonic()
    with _quiet_libraries(console, verbose=request.switches.verbose), _terminable():
        if request.switches.dry_run:
            _check(command, config, console)
            _show_config(command, config, console)
            return OK
        result = _work(command, config, console, [command.name, *words])
    if console.is_json:
        seconds = round(time.monotonic() - start, 3)
        out = {"out": str(config.out)} if hasattr(config, "out") else {}
        console.document({"command": command.name, **out, "seconds": seconds, **result})
    elif hasattr(config, "out"):
        console.say(f"\nresults: {config.out}/")
    return int(result.get("exit_code", OK))


def _show_config(command: Command, config: Any, console: Console) -> None:
    if console.is_json:
        console.document({"command": command.name, "config": to_table(config)})
    else:
        console.say(to_toml(command.name, config).rstrip())


def _check(command: Command, config: Any, console: Console) -> None:
    """Run the command up to the point where its work starts, in a temporary folder."""
    if hasattr(config, "out"):
        check_out(config.out)
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "w") as nowhere:
        silent = Console(is_json=console.is_json, is_quiet=True, out=nowhere, err=console.err)
        session = Session(silent, Path(scratch, "results"), Path(scratch, "out"), is_dry=True)
        session.folder.mkdir()
        with contextlib.suppress(Checked):
            load_name(command.run)(_completed(config, silent), session)


def _completed(config: Any, console: Console) -> Any:
    """Return `config` with the defaults that the model and the data imply."""
    if not hasattr(config, "dataset"):  # by its name: what knows more needs torch
        return config
    return load_name(KNOWN_DEFAULTS)(config, console)


def _work(
    command: Command, config: Any, console: Console, words: Sequence[str]
) -> Mapping[str, Any]:
    run = load_name(command.run)
    if not hasattr(config, "out"):
        found: Mapping[str, Any] = run(config, Session(console, Path(), Path()))
        return found
    obsolete: list[Path] = []
    asked = to_toml(command.name, config)
    with (
        _imports_left_alone(),
        staged(config.out, obsolete) as folder,
        run_log(config.out, words, asked, console) as logged,
    ):
        config = _completed(config, logged)
        session = Session(logged, folder, config.out, obsolete)
        result: Mapping[str, Any] = run(config, session)
        write_whole(folder / CONFIG, to_toml(command.name, config))
        written = sorted({*(entry.name for entry in folder.iterdir()), RESULT})
        with (folder / RESULT).open("w") as opened:
            Console(out=opened).document({**result, FILES: written})
    return result


def _has_bars(console: Console) -> bool:
    return not console.is_quiet and console.err.isatty()


def _set_environment(console: Console, *, verbose: bool) -> None:
    """What libraries read when they are imported, which the configuration of a command may do."""
    if not _has_bars(console):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not verbose:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


@contextlib.contextmanager
def _quiet_libraries(console: Console, *, verbose: bool) -> Iterator[None]:
    """What libraries print goes to stderr, without bars where that is no terminal."""
    transformers = sys.modules.get("transformers")  # loaded before: it has read its environment
    if transformers is not None and not _has_bars(console):
        transformers.utils.logging.disable_progress_bar()
    reports = get_report_logger()
    level = reports.level
    reports.setLevel("INFO" if verbose else "WARNING")  # commands draw their own tables
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        reports.setLevel(level)


@contextlib.contextmanager
def _imports_left_alone() -> Iterator[None]:
    """Each training ends in a collection of garbage: it need not look at what was imported."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: unfinished files are removed."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
