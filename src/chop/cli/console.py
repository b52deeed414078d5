"""What a command says: results on stdout, progress on stderr, one JSON document where asked."""

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
"""How often progress is told where there is no terminal to draw a bar on."""


def write_line(stream: TextIO, text: str, end: str = "\n") -> None:
    """Print `text` with control characters as escapes: no name from a file reaches the terminal."""
    print(printable(text), end=end, file=stream, flush=True)


class ProgressDisplay:
    """Steps done of a total: a bar on a terminal, elsewhere a line now and then."""

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
        self.told = self.started
        self.bar = None
        if not quiet and stream.isatty():
            self.bar = tqdm(
                total=total, desc=printable(text), file=stream, leave=False, dynamic_ncols=True
            )
        self._line(f"{text} …")

    def expect(self, total: float) -> None:
        """Say how many steps there are, where that is known late."""
        self.total = total
        if self.bar is not None:
            self.bar.total = total

    def to(self, done: float, note: str = "") -> None:
        """Say that `done` steps are done."""
        if self.bar is not None:
            self.bar.set_postfix_str(printable(note), refresh=False)
            self.bar.update(done - self.done)
        self.done = done
        now = time.monotonic()
        if now - self.told >= SECONDS_BETWEEN_LINES:
            self.told = now
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
    """Where a command's words go. With `is_json` the document says all; tables are left out."""

    is_json: bool = False
    is_quiet: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    log: TextIO | None = None
    """Gets a copy of all that is said."""

    def say(self, text: str = "") -> None:
        """A line of the result, for people."""
        if not self.is_json:
            write_line(self.out, text)
        self._note_down(text)

    def _note_down(self, text: str) -> None:
        if self.log is not None:
            write_line(self.log, text)

    def table(self, rows: Sequence[Mapping[str, Any]], **style: Any) -> None:
        """Records as a table, for people."""
        if rows:
            self.say(tabulate(rows, headers="keys", **style))

    def note(self, text: str) -> None:
        """Something to know that is no result, on stderr."""
        if not self.is_quiet:
            write_line(self.err, text)
        self._note_down(text)

    def progress(self, text: str, total: float | None = None) -> ProgressDisplay:
        """Long work: `with console.progress("train", steps) as progress: progress.to(3)`."""
        return ProgressDisplay(self.err, text, total, self.is_quiet, self.log)

    def document(self, content: Mapping[str, Any]) -> None:
        """The one JSON document on stdout."""
        write_line(self.out, json.dumps(content, indent=1, default=_plain))

    def fail(self, text: str) -> None:
        """Why the command ends."""
        write_line(self.err, f"mase: {text}")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, set | frozenset | range) else str(value)
