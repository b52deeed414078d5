"""Output of a command: results on stdout, progress on stderr, or one JSON document."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from tabulate import tabulate
from tqdm import tqdm

from chop.printable import printable

SECONDS_BETWEEN_LINES = 10.0
"""Time between lines of progress if there is no terminal for a bar."""


_last_written = [0.0]
"""Time of the last line, in seconds of the monotonic clock."""


def silence_s() -> float:
    """Return the seconds since the last line was printed."""
    return time.monotonic() - _last_written[0]


def write_line(stream: TextIO, text: str, end: str = "\n") -> None:
    """Print `text` with control characters as escapes, so that names cannot control terminals."""
    _last_written[0] = time.monotonic()
    print(printable(text), end=end, file=stream, flush=True)


class ProgressDisplay:
    """Progress: a bar on a terminal, elsewhere a line from time to time."""

    def __init__(
        self,
        stream: TextIO,
        text: str,
        total: float | None,
        quiet: bool,
        log: TextIO | None = None,
    ) -> None:
        self.stream, self.text, self.total, self.quiet = stream, text, total, quiet
        self.log = log
        self.done, self.started = 0.0, time.monotonic()
        self.printed = self.started
        self.bar = None
        if not quiet and stream.isatty():
            self.bar = tqdm(
                total=total, desc=printable(text), file=stream, leave=False, dynamic_ncols=True
            )
        self._line(f"{text} …")

    def expect(self, total: float) -> None:
        """Set the total number of steps, if it is known late."""
        self.total = total
        if self.bar is not None:
            self.bar.total = total

    def to(self, done: float, note: str = "") -> None:
        """Show that `done` steps are done."""
        if self.bar is not None:
            self.bar.set_postfix_str(printable(note), refresh=False)
            self.bar.update(done - self.done)
        self.done = done
        now = time.monotonic()
        if now - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = now
            of = f" of {self.total:g}" if self.total else ""
            self._line(f"{self.text}: {done:g}{of}{', ' if note else ''}{note}")

    def _line(self, text: str) -> None:
        if not self.quiet and self.bar is None:
            write_line(self.stream, text)
        if self.log is not None:
            write_line(self.log, text)

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        if error[0] is None:
            self._line(f"{self.text}: done in {time.monotonic() - self.started:.1f} s")


@dataclass(frozen=True)
class Console:
    """Destination of a command's output. With `is_json` only the document is printed."""

    is_json: bool = False
    is_quiet: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    log: TextIO | None = None
    """Receives a copy of all output."""

    def say(self, text: str = "") -> None:
        """Print a line of the result."""
        if not self.is_json:
            write_line(self.out, text)
        self._log(text)

    def _log(self, text: str) -> None:
        if self.log is not None:
            write_line(self.log, text)

    def table(self, rows: Sequence[Mapping[str, Any]], **style: Any) -> None:
        """Print records as a table."""
        if rows:
            self.say(tabulate(rows, headers="keys", **style))

    def note(self, text: str) -> None:
        """Print a remark on stderr."""
        if not self.is_quiet:
            write_line(self.err, text)
        self._log(text)

    def progress(self, text: str, total: float | None = None) -> ProgressDisplay:
        """Show long work: `with console.progress("train", steps) as progress: progress.to(3)`."""
        return ProgressDisplay(self.err, text, total, self.is_quiet, self.log)

    def document(self, content: Mapping[str, Any]) -> None:
        """Print the JSON document on stdout."""
        write_line(self.out, json.dumps(content, indent=1, default=_plain))

    def fail(self, text: str) -> None:
        """Print the reason why the command ends."""
        write_line(self.err, f"mase: {text}")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, set | frozenset | range) else str(value)
