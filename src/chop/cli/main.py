"""The program `mase`: parse a command line, run the command, return an exit code."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.abc
import importlib.metadata
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from chop.cli.commands import COMMANDS, Command
from chop.cli.console import Console, write_line
from chop.cli.execute import check, execute, follow, report_level
from chop.cli.failures import FAILED, OK, UsageError, exit_code, explain
from chop.cli.option import (
    add_options,
    field_help,
    given_values,
    options_of,
    tables_of,
    takes_the_rest,
)
from chop.cli.rank_launcher import (
    end_with_starter,
    is_started,
    launch,
    own_rank,
    processes_of,
)
from chop.cli.settings import resolve, to_table, to_toml
from chop.log import set_logging_verbosity
from chop.registry import suggest


class Parser(argparse.ArgumentParser):
    """Parser that raises an error instead of leaving the program."""

    def error(self, message: str) -> NoReturn:
        """Raise a usage error; for an unknown flag it names the nearest one."""
        flag = message.removeprefix("unrecognized arguments: ").split(" ")[0].split("=")[0]
        near = difflib.get_close_matches(flag, self._option_string_actions, 1, cutoff=0.8)
        hint = f" Did you mean {near[0]}?" if near and near[0] != flag else ""
        raise UsageError(f"{message}. See `{self.prog} --help`.{hint}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mase` with the arguments `argv`; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(is_json="--json" in words, is_quiet="--quiet" in words)
    is_debug = "--debug" in words
    _set_environment(console, verbose="--verbose" in words)
    try:
        with _announced(console, words):
            return _dispatch(words, console)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if is_debug:
            write_line(console.err, "".join(traceback.format_exception(error)), end="")
        code, message = exit_code(error), explain(error)
        if console.is_json:
            problem = {"kind": type(error).__name__, "message": message}
            console.document({"error": problem, "exit_code": code})
        console.fail(message)
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
    """Import hook that prints the command line before torch is imported, which takes seconds."""

    def __init__(self, console: Console, words: Sequence[str]) -> None:
        self.console, self.text = console, f"mase {' '.join(words)}: loading torch …"

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Print the line once, and find nothing: the next finders do."""
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
    """Return the text of `mase --help`: one line for each command."""
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
    """Return the version of the installed distribution."""
    try:
        return importlib.metadata.version("masegraph")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


# -- one command -----------------------------------------------------------------------------------


def build_parser(command: Command) -> Parser:
    """Return the parser of a command, made from the fields of its configuration."""
    options = options_of(command.config)
    words = [
        option.path[-1].upper() + " …" * option.is_list
        for option in sorted(options, key=takes_the_rest)
        if option.is_positional
    ]
    parser = Parser(
        prog=f"mase {command.name}",
        usage=" ".join(["mase", command.name, *(f"[{word}]" for word in words), "[options]"]),
        description=command.summary,
        epilog=_epilog(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, options)
    common = parser.add_argument_group("Every command")
    for flag, text in SWITCHES.items():
        common.add_argument(flag, action="store_true", help=text)
    common.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"Read the table [{command.name}] of a TOML file",
    )
    common.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Set one value, such as rules.linear.config.width=8; may be repeated",
    )
    return parser


SWITCHES = {
    "--dry-run": "Check everything that the run checks, print the configuration as TOML, write "
    "nothing",
    "--json": "Print one JSON document on stdout; everything else goes to stderr",
    "--quiet": "Print no progress and no notes",
    "--verbose": "Print the log messages of the library",
    "--debug": "Print the traceback of an error",
}
"""Flags of every command that take no value."""


def _epilog(command: Command) -> str:
    lines = ["examples:", *(f"  {example}" for example in command.examples)]
    tables, helps = tables_of(command.config), field_help(command.config)
    if tables:
        lines += ["", "tables, from --config or --set:"]
        lines += [f"  {name:15} {helps[name][0].rstrip('.')}" for name in tables]
    return "\n".join(lines)


@dataclass(frozen=True)
class Request:
    """A parsed command line: the configuration, and the switches of every command."""

    config: Any
    switches: argparse.Namespace


def read_request(command: Command, words: Sequence[str]) -> Request:
    """Return the configuration of a command line and of the file that it names."""
    options, parser = options_of(command.config), build_parser(command)
    several = any(takes_the_rest(option) for option in options)
    namespace = (parser.parse_intermixed_args if several else parser.parse_args)(list(words))
    flags = given_values(options, namespace)
    config: Any = resolve(command.config, command.name, namespace.config, namespace.set, flags)
    return Request(config, namespace)


def _run(command: Command, words: Sequence[str], console: Console) -> int:
    request = read_request(command, words)
    config, verbose = request.config, request.switches.verbose
    set_logging_verbosity("info" if verbose else "warning")
    start = time.monotonic()
    with _quiet_libraries(console, verbose=verbose), _terminable():
        if request.switches.dry_run:
            check(command, config, console)
            _show_config(command, config, console)
            return OK
        if processes_of(config) > 1 and not is_started():
            return launch(processes_of(config), [command.name, *words], console)
        if own_rank() > 0 and hasattr(config, "processes"):
            follow(command, config, console)
            return OK
        end_with_starter()
        result = execute(command, config, console, [command.name, *words])
    if console.is_json:
        seconds = round(time.monotonic() - start, 3)
        out = {} if result.out is None else {"out": str(result.out)}
        console.document({"command": command.name, **out, "seconds": seconds, **result})
    elif result.out is not None:
        console.say(f"\nresults: {result.out}/")
    return int(result.get("exit_code", OK))


def _show_config(command: Command, config: Any, console: Console) -> None:
    if console.is_json:
        console.document({"command": command.name, "config": to_table(config)})
    else:
        console.say(to_toml(command.name, config).rstrip())


def _has_bars(console: Console) -> bool:
    return not console.is_quiet and console.err.isatty()


def _set_environment(console: Console, *, verbose: bool) -> None:
    """Set the variables that libraries read when they are imported."""
    if not _has_bars(console):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not verbose:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


@contextlib.contextmanager
def _quiet_libraries(console: Console, *, verbose: bool) -> Iterator[None]:
    """Send the output of libraries to stderr; show progress bars on a terminal only."""
    transformers = sys.modules.get(
        "transformers"
    )  # already imported: its environment has no effect
    if transformers is not None and not _has_bars(console):
        transformers.utils.logging.disable_progress_bar()
    with report_level("INFO" if verbose else "WARNING"), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: unfinished files are removed."""

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
